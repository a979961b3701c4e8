"""Lab-IA's archives and tables."""
