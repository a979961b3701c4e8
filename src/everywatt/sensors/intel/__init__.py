"""Accelerators of Intel: Gaudi. Graphics cards of Intel are read by hwmon."""
