"""Recordings of AIPowerMeter."""
