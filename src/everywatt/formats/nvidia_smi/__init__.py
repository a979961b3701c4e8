"""Logs of nvidia-smi: queries, dmon, pmon."""
