"""Faces on a tape: text now; pages, plots and live views stand on the same queries."""
