"""Hardware in, ticks out. One module a hardware family. Knows nothing of runs, owners or files."""
