"""The file: write it, read it while it is written, open it after a kill, export it, import it."""
