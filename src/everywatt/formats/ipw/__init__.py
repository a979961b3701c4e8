"""Profiles of Intelligence per Watt."""
