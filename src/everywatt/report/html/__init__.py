"""One self-contained HTML page over runs."""
