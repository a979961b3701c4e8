"""Telemetry of BADC's batch runner."""
