"""The laboratories of benchmarks/, which these tests assert on."""

from benchmark_labs import lab, recordings  # noqa: F401 - fixtures
from trees import tree  # noqa: F401 - a fixture
