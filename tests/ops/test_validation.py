"""Arguments of a wrong type are answered in words for people, with the field that they are about."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.core.errors import ArgumentError
from tidemill.ops.jobs.jobs import EnqueueJob
from tidemill.ops.jobs.schedules import BackfillSchedule
from tidemill.ops.operator.validation import read_arguments

MOMENT = "must be a date and time with its time zone, such as 2026-03-02T08:00:00Z"


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (EnqueueJob, {"task": "send", "priority": "high"}, "priority: must be an integer, and not text"),
        (EnqueueJob, {"task": "send", "delay": []}, "delay: must be a number or text, and not a list"),
        (EnqueueJob, {"task": "send", "tags": "vip"}, "tags: must be a list, and not text"),
        (EnqueueJob, {"task": 5}, "task: must be text, and not an integer"),
        (EnqueueJob, {"task": "send", "at": "tomorrow"}, f"at: {MOMENT}"),
        (BackfillSchedule, {"name": "night", "since": "2026-11-18"}, f"since: {MOMENT}"),
    ],
)
def test_a_wrong_type_is_named_in_plain_words(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        read_arguments(kind, given)
    assert str(refused.value) == said
