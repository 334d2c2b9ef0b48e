"""Every handle says how long it waits in the same way: seconds, or text such as "2s"."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.test_wrong_options import Asking, Shop, Word
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.flows import Event

Waits = Callable[[Shop, Any], Any]

WAITS: dict[str, Waits] = {
    "a job": lambda shop, timeout: _of(shop.app.enqueue(shop.send.call()), "result", timeout=timeout),
    "a batch": lambda shop, timeout: _of(shop.app.batch([shop.send.call()]), "results", timeout=timeout),
    "a run": lambda shop, timeout: _of(shop.app.start(Asking), "result", timeout=timeout),
    "a reply of a run": lambda shop, timeout: _of(shop.app.start(Asking), "ask", Word(text="a"), timeout=timeout),
    "a dag": lambda shop, timeout: _of(shop.app.start("asks"), "result", timeout=timeout),
    "a run of plain code": lambda shop, timeout: _wait_sync(shop.app, shop.app.start(Asking), timeout),
    "a reply of a run in memory": lambda shop, timeout: _ask_in_memory(timeout),
}


async def _of(started: Any, method: str, *args: Any, timeout: Any) -> None:
    await getattr(await started, method)(*args, timeout=timeout)


async def _wait_sync(app: App, started: Any, timeout: Any) -> None:
    await asyncio.to_thread(app.wait_sync, await started, timeout=timeout)


async def _ask_in_memory(timeout: Any) -> None:
    handler = Asking().run()
    try:
        await handler.ask(Event(), timeout=timeout)
    finally:
        await handler.cancel_run(timeout="30s")


#: What the error of each says; a run in memory has no id, and no command explains it.
SAYS = {
    "a job": r"job (\d+) has not ended within 20ms: `tidemill explain \1` says what it waits for",
    "a batch": r"batch (b\d+) has not ended within 20ms: `tidemill explain \1`",
    "a run": r"run (r\d+) has not ended within 20ms: `tidemill explain \1`",
    "a reply of a run": r"run (r\d+) has not replied within 20ms: `tidemill explain \1`",
    "a dag": r"run (r\d+) has not ended within 20ms: `tidemill explain \1`",
    "a run of plain code": r"run (r\d+) has not ended within 20ms: `tidemill explain \1`",
    "a reply of a run in memory": "the run has not replied within 20ms",
}


@pytest.mark.parametrize("what", WAITS)
async def test_a_handle_waits_as_long_as_a_text_says(app: App, what: str) -> None:
    shop = Shop(app)
    with pytest.raises(TimeoutError, match=SAYS[what]):
        await WAITS[what](shop, "20ms")
    with pytest.raises(ConfigError, match="timeout: 'soon' is not a length of time"):
        await WAITS[what](shop, "soon")


@pytest.mark.parametrize("what", WAITS)
@pytest.mark.parametrize("left", [-0.5, timedelta(seconds=-3)])
async def test_a_handle_whose_time_was_over_before_it_waits_does_not_wait(app: App, what: str, left: Any) -> None:
    with pytest.raises(TimeoutError):
        await WAITS[what](Shop(app), left)


@pytest.mark.parametrize("what", sorted(WAITS.keys() - {"a run of plain code"}))  # A thread cannot be cancelled.
async def test_a_handle_waits_without_end_for_infinity(app: App, what: str) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(WAITS[what](Shop(app), float("inf")), 0.2)
