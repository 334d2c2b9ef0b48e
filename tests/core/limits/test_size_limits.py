"""What is too large to be stored is refused where it comes from, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidemill import App
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.limits.size_limits import SizeLimits, use_size_limits
from tidemill.engine.jobs.task import encode_result
from tidemill.engine.settings import load_settings
from tidemill.flows import Event
from tidemill.flows.encoding.journal import _raw
from tidemill.monitors.reducer.state import write_state
from tidemill.pipelines.runner.build import to_content
from tidemill.streaming import _entries

LARGE = "x" * 200

app = App("limits")


@app.task
async def send(text: str) -> str:
    return text


class Told(Event):
    text: str


@pytest.fixture(autouse=True)
def small_limits() -> Iterator[None]:
    use_size_limits(SizeLimits(100, 100, 100))
    yield
    use_size_limits(SizeLimits())


@pytest.mark.parametrize(
    ("what", "setting", "store"),
    [
        ("task send: its arguments", "max_payload", lambda text: send.signature.pack({"text": text})),
        ("the result of task send", "max_payload", lambda text: encode_result("send", text)),
        ("event Told", "max_payload", lambda text: _raw(Told(text=text))),
        ("a message for topic orders", "max_payload", lambda text: _entries("orders", [text], None, None)),
        ("the state", "max_state", lambda text: write_state({"text": text})),
        ("the output of stage digest", "max_output", lambda text: to_content(text, "digest")),
        ("the output of stage digest", "max_output", lambda text: to_content({"text": text}, "digest")),
    ],
)
def test_what_is_too_large_is_refused_with_its_size_the_limit_and_the_setting(
    what: str, setting: str, store: Callable[[str], Any]
) -> None:
    store("x")
    with pytest.raises(PayloadError) as refused:
        store(LARGE)
    said = str(refused.value)
    assert said.startswith(f"{what} would take 2")
    assert "and the limit is 100 B" in said
    assert said.endswith(f"pass its address, or raise the setting {setting}")


def test_the_limits_are_settings_and_may_be_written_with_a_unit() -> None:
    settings = load_settings(max_payload="2 MB", max_state="1 GB", max_output=5)
    assert settings.size_limits() == SizeLimits(2_000_000, 1_000_000_000, 5)


def test_a_memory_limit_needs_a_process_of_its_own() -> None:
    with pytest.raises(ConfigError, match="memory= limits a process of its own: add isolation='process'"):

        @app.task(memory="1 GB")
        def plain() -> None: ...


def test_a_loss_limit_of_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_losses 0: at least 1 is needed to run anything"):
        load_settings(max_losses=0)
