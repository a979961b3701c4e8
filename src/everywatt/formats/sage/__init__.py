"""Records of Sage/Waggle."""
