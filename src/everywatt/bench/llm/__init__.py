"""Language models: what an answer costs in energy, whether it is right, and how sure both are."""
