"""Whole nodes: hwmon, IPMI, Redfish, Cray, Raspberry Pi."""
