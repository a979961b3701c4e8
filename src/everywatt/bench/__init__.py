"""Trials and statistics: comparing commands, settings and models by their energy."""
