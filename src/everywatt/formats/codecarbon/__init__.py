"""Emission files of CodeCarbon."""
