"""`python -m everywatt.recorder [READY_FD]`: the recorder process.

Clients start this very file with `-I -S`, so that no site, user or start-up file of the host is run and its `__main__`
is never imported. Where to import from comes in EVERYWATT_RECORDER_PATH, after the interpreter's own folders.
"""

import os
import sys

if __name__ == "__main__":
    entries = os.environ.pop("EVERYWATT_RECORDER_PATH", None)
    if entries is not None:
        # Once, before much is loaded, so that the program that started it has no child to wait for.
        if os.fork():
            os._exit(0)  # the helper of the launcher, not a host program
        os.write(int(sys.argv[1]), b".")  # a sign of life: importing may take a while
        sys.path += [entry for entry in entries.split(os.pathsep) if entry and entry not in sys.path]
    from everywatt.recorder.process import main

    sys.exit(main())
