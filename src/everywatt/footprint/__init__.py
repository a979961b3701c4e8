"""Carbon and cost of energy."""
