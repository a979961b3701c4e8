"""What a site has: store, tables, days and months."""
