"""The laboratories of benchmarks/, which these tests assert on."""

from benchmark_labs import honesty, lab, product, recordings  # noqa: F401 - fixtures
