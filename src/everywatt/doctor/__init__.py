"""Check-up, characterisation of sensors, calibration, preflight."""
