"""Runs plain functions in threads and passes on every way they can end.

A future cannot carry a `StopIteration` from a thread: the waiting code would hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any


def caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call a function; returns its result or the exception that it raised."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - raised again in the waiting code
        return None, error


async def in_thread(call: Callable[[], Any], executor: Executor | None = None) -> Any:
    """Call in a thread with the caller's context variables; returns or raises what the call did."""
    context = copy_context()
    result, error = await asyncio.get_running_loop().run_in_executor(executor, lambda: context.run(caught, call))
    if error is not None:
        raise error
    return result
