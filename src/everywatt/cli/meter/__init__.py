"""`everywatt meter`."""
