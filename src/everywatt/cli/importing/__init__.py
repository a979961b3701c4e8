"""`everywatt import`."""
