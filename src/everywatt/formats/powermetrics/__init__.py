"""Logs of macOS's powermetrics."""
