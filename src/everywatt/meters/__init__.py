"""Wattmeters at the wall, recordings of other tools, and what the two say of chips."""
