"""Measured figures, each beside the tools that people use today: `python -m benchmarks [NAME…] [--quick]`."""
