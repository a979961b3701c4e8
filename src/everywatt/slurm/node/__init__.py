"""What runs on a node: hooks, spool, recorder of jobs."""
