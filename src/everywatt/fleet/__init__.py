"""Nodes: the agent that never stops, its metrics, and remote write. Nothing here loads numpy: an agent is small."""
