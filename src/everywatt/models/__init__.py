"""Power models: learn watts from what a machine does, say how far off they are, and be a sensor where none is."""
