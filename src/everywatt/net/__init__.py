"""The network: one HTTP client for every room, and the guards of every server."""
