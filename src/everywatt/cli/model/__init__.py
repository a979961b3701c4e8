"""`everywatt model`."""
