"""Where the user's code raised an exception: its traceback without the frames of Tidemill that called it."""

from __future__ import annotations

import concurrent.futures.thread
import os
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def user_traceback(error: BaseException, *, limit: int | None = None) -> str:
    """An exception's traceback as text, from the user's first frame on."""
    try:
        return "".join(traceback.format_exception(type(error), error, _user_frames(error.__traceback__), limit=limit))
    except Exception as broken:  # noqa: BLE001 - the exception's own code is the user's
        return f"(its traceback cannot be read: {type(broken).__name__})"


def user_line(error: BaseException) -> str:
    """The last line of the user's own files that an exception passed: ` (app.py, line 3)`; nothing without one."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not _is_library(each.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    inner = trace
    while inner is not None and _is_ours(inner.tb_frame.f_code.co_filename):
        inner = inner.tb_next
    return inner or trace


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE) or file == concurrent.futures.thread.__file__


def _is_library(file: str) -> bool:
    return file.startswith(("<", _PACKAGE, *_LIBRARIES))
