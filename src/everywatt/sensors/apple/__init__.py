"""Apple machines: powermetrics."""
