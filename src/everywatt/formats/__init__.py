"""Other tools' files, one folder a tool."""
