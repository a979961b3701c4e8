"""Joules of spans that overlap."""
