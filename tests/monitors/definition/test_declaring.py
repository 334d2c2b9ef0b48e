"""Functions that a monitor could not call as it does are refused when it is declared, and not at the first event."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest

from tidemill.core.errors import ConfigError
from tidemill.monitors import Channel, Monitor, Notice, Slack, absent, momentary, sustained
from tidemill.sources import LogSource


class Count:
    def on_event(self, state: Any, event: Any) -> None:
        state.n = (state.n or 0) + 1


class AsyncCount:
    async def on_event(self, state: Any, event: Any) -> None: ...


class ShortCount:
    def on_event(self, event: Any) -> None: ...


class AsyncTick(Count):
    async def on_tick(self, state: Any, now: float) -> None: ...


class Silent(Channel, frozen=True):
    pass


class Wrong(Channel, frozen=True):
    def send(self) -> None: ...


class Pager(Channel, frozen=True):
    async def send(self, notice: Notice) -> None: ...


class AsyncCall:
    async def __call__(self, state: Any, now: float) -> bool:
        return False


async def is_hot(state: Any, now: float) -> bool:
    return False


def declare(**options: Any) -> Monitor:
    given: dict[str, Any] = {"source": LogSource("readings"), "entity": itemgetter("machine"), "fold": Count}
    return Monitor("machines", **{**given, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fold": AsyncCount}, "fold AsyncCount: AsyncCount.on_event is async, and nothing would await it"),
        ({"fold": ShortCount}, r"fold ShortCount: ShortCount.on_event must take \(state, event\): too many"),
        ({"fold": AsyncTick}, "fold AsyncTick: AsyncTick.on_tick is async"),
        ({"entity": "machine"}, r"monitor machines: entity= takes a function, such as lambda event: .*not 'machine'"),
        ({"entity": lambda: "x"}, r"monitor machines: entity=: .*<lambda> must take \(event\): too many"),
        ({"notify": ["ops@example.org"]}, r"monitor machines: notify= takes channels, such as Email\(.*not 'ops@"),
        (
            {"notify": [Silent()]},
            "monitor machines: channel silent cannot be sent to: give it a method send",
        ),
        ({"notify": [Wrong()]}, r"monitor machines: channel wrong: Wrong\.send must take \(notice\)"),
        ({"triggers": ["hot"]}, "monitor machines: triggers= takes what sustained, momentary and absent return"),
    ],
)
def test_a_monitor_whose_parts_cannot_be_called_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declare(**options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sustained("hot", when=is_hot), "trigger hot: when=: is_hot is async, and nothing would await it"),
        (lambda: sustained("hot", when=AsyncCall()), "trigger hot: when=: .* is async"),
        (lambda: sustained("hot", when=lambda s: True), r"trigger hot: when=: .* must take \(state, now\)"),  # pyright: ignore
        (lambda: sustained("hot", when="hot"), "trigger hot: when= takes a function, such as lambda state, now"),  # pyright: ignore
        (lambda: sustained("hot", when=lambda s, n: True, since=lambda s, n: 0.0), r"since=: .* must take \(state\)"),  # pyright: ignore
        (lambda: absent("silent", after="5m", only_while=lambda s: True), r"only_while=: .* \(state, now\)"),  # pyright: ignore
        (lambda: momentary("big", of=lambda s: s.runs, when=lambda s, n: True), r"when=: .* \(occurrence\)"),  # pyright: ignore
    ],
)
def test_a_trigger_whose_condition_cannot_be_called_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_functions_without_a_signature_and_names_of_fields_are_accepted() -> None:
    trigger = momentary("big", of=itemgetter("runs"), key="id", at="at", severity="warning", evidence=str)
    notify = [Pager(), Slack(url="https://hooks.example.org/T0")]
    assert declare(entity=str, fold=Count(), triggers=[trigger], notify=notify).triggers == (trigger,)
