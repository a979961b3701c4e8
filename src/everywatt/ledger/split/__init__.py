"""Splitting joules among users of a device."""
