"""Metric names of other exporters: Kepler, DCGM, jetson-exporter."""
