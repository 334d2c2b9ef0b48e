"""The compiled kernel of the tree edit distance, where it was built: a plain shared library, loaded by ctypes.

It is built when Tidemill is installed, if there is a C compiler (`build.py`). Without it everything works, more slowly.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

LIBRARY = Path(__file__).with_name("treekernel.so")
OFF = "TIDEMILL_PURE_PYTHON"


def load(library: Path = LIBRARY) -> Callable[..., float] | None:
    """The compiled distance, or None where there is none."""
    if os.environ.get(OFF) or not library.exists():
        return None
    try:
        found = ctypes.CDLL(str(library)).tree_distance
    except (OSError, AttributeError):
        return None  # Built for another machine.
    found.restype = ctypes.c_double
    side = [ctypes.c_int32, ctypes.c_int32, *[ctypes.c_void_p] * 4]
    found.argtypes = [*side, *side, ctypes.c_double, ctypes.c_double]
    return found
