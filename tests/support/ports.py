"""Ports for the servers of tests that have to know theirs before they listen."""

from __future__ import annotations

import itertools
import random
import socket

#: Below the range from which the system gives ports to whoever connects somewhere: nobody takes one by chance.
FIRST, LAST = 15_000, 30_000

_numbers = itertools.count(random.SystemRandom().randrange(FIRST, LAST))


def free_port() -> int:
    """A port of this machine at which nobody listens; each call gives another."""
    while True:
        port = FIRST + next(_numbers) % (LAST - FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
