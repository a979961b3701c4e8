"""`everywatt slurm`."""
