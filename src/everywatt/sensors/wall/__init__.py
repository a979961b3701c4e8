"""Plugs, PDUs and programs that print watts."""
