"""The file: write it, read it while it is written, open it after a kill, export it, import it."""

from __future__ import annotations

SUFFIX = ".tape"  # of its name; who only looks for tapes need not load what reads them
