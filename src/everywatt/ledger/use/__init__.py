"""What used a device, and when."""
