"""`everywatt bench`."""
