"""Garbage collection in a process that drives runs or dispatches messages.

Both are freed by their reference counts as soon as they end. The collector would visit those in progress again and
again, and with them everything that the process has loaded: that was an eighth of the processor time of a step, and at
least a tenth of what a dispatcher takes for a message.
"""

from __future__ import annotations

import gc

YOUNG = 5_000  # container objects that are made before the collector visits them; Python's default is 700

_is_tuned = False


def tune_garbage_collection() -> None:
    """Leave out what is loaded, and visit new objects less often. Only once: a process may have settings of its own."""
    global _is_tuned
    young, middle, old = gc.get_threshold()
    if _is_tuned or not gc.isenabled() or not young:
        return
    _is_tuned = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(young, YOUNG), middle, old)
