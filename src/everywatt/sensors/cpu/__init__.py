"""Processors: RAPL by powercap and perf, and the model for machines without sensors."""
