"""Logs of ipmitool."""
