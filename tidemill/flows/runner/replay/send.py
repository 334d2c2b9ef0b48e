"""`ctx.send_event` by the record: an event that has left already does not leave again."""

from __future__ import annotations

from functools import lru_cache

from tidemill.flows.definition.events import Event, qualified_name
from tidemill.flows.runner.replay.step_replay import StepReplay


def send_by_record(replay: StepReplay, message: Event, step: str | None, *, holds: bool) -> bool:
    """Record a send, and return whether the event leaves now; with `holds` it leaves when the step ends or waits."""
    key = send_key(type(message), step)
    lane, operation = replay.at("send", key)
    replay.refuse_inside_effect(lane, "send_event()")
    replay.observe(lane, operation, "send", key, message)
    if operation is not None:
        return False
    is_new = False
    if replay.sends_to_skip:
        replay.sends_to_skip -= 1  # It was sent before the step was restarted.
    else:
        is_new = not replay.is_spare((message, step))
    replay.add(lane, "send", key, message, leaves=is_new and holds)
    return is_new and not holds


@lru_cache(maxsize=1024)
def send_key(kind: type, step: str | None) -> str:
    """Return the key of a send in the record of a step."""
    return f"{qualified_name(kind)} {step or ''}"
