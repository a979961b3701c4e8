"""The laboratories of benchmarks/, which these tests assert on."""

from benchmark_labs import ablation, product  # noqa: F401 - fixtures
