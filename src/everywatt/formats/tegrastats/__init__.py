"""Logs of tegrastats."""
