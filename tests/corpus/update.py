"""Write expectations of the frozen corpus with the code that is imported now.

    python tests/corpus/update.py NAME...    # these cases (a name may end with *)
    python tests/corpus/update.py --new      # cases that have no expectation yet
    python tests/corpus/update.py --all      # only for a corpus that is made from the start

An expectation changes in a commit of its own that says why the old output was wrong or what is promised instead. Each
case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import fnmatch
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from corpus_cases import CASES

from corpus import play, store, stored, to_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        store(options.here, to_text(play(CASES[options.here])))
        return
    chosen = [
        name
        for name in CASES
        if options.all
        or (options.new and stored(name) is None)
        or any(fnmatch.fnmatch(name, pattern) for pattern in options.names)
    ]
    for name in chosen:
        print(name, flush=True)
        subprocess.run([sys.executable, __file__, "--here", name], check=True)


if __name__ == "__main__":
    main()
