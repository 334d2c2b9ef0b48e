"""Ports for the servers of tests that have to know theirs before they listen."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

#: Below the range from which the system gives ports to whoever connects somewhere: nobody takes one by chance.
FIRST, LAST = 15_000, 30_000

#: Those who run parts of the tests at the same time have a share each: nobody takes what another is about to use.
SHARES = 10
SHARE = (LAST - FIRST) // SHARES

_mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % SHARES
_numbers = itertools.count(random.SystemRandom().randrange(SHARE))


def free_port() -> int:
    """A port of this machine at which nobody listens; each call gives another."""
    while True:
        port = FIRST + _mine * SHARE + next(_numbers) % SHARE
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


@contextmanager
def closed_port() -> Iterator[int]:
    """A port at which nobody listens, and nobody will while the block lasts."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
