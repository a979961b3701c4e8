"""`everywatt batch`."""
