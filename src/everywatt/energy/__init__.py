"""From ticks to joules: which channel speaks for a device, integration, uncertainty, coverage, quality."""
