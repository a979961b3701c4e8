"""`python -m everywatt` is the command `everywatt`."""

import sys

from everywatt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
