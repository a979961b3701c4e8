"""Jobs of a Slurm cluster: hooks, who is who on a node, the record of each job, the store of a site, its tables."""
