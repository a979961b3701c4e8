"""Tables of readings as CSV."""
