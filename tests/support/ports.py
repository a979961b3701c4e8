"""Ports for servers that must be told one.

They are below those that the kernel gives away (32768 and up), so that no connection of another test takes one between
the look for it and the start of its server; every worker has its own hundreds.
"""

import itertools
import os
import random
import socket

FIRST, A_WORKER = 20_000, 500
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 20
_begin = random.SystemRandom().randrange(A_WORKER)  # another session of tests may run on this machine
_numbers = (FIRST + A_WORKER * _worker + (_begin + step) % A_WORKER for step in itertools.count())


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on and that is given once."""
    for port in itertools.islice(_numbers, A_WORKER):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("No port is free.")
