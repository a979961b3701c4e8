"""The one live view: sources give snapshots, faces show them."""
