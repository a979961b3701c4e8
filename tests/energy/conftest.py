"""The laboratories of benchmarks/, which these tests assert on."""

from benchmark_labs import product  # noqa: F401 - a fixture
