"""Jetson boards: rails in sysfs, and tegrastats."""
