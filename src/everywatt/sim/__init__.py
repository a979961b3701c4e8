"""Hardware with a known truth: power curves in closed form, and sensors in front of them that real programs load."""
