"""Which options each call takes that starts work: the contract of `docs/jobs.md`, with a check of what it stores.

A cell is a condition on the row that the call has stored; a cell that does not exist is a call that is refused.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tidemill.engine.runs.start_options import NOT_FOR_RUNS

#: Each call, the table in which it stores a row, and what it is called in the guide.
CALLS = {
    "enqueue": ("job", "`enqueue`"),
    "enqueue_many": ("job", "`enqueue_many`"),
    "batch": ("job", "`batch`"),
    "start_flow": ("run", "`start` of a flow"),
    "start_dag": ("run", "`start` of a dag"),
    "send_event": ("inbox", "`send_event`"),
    "publish": ("event_log", "`publish`"),
    "submit": ("inbox", "`submit`"),
    "write": ("state_blob", "`states(...).write`"),
}
JOBS, MANY, RUNS = ("enqueue",), ("enqueue", "enqueue_many", "batch"), ("start_flow", "start_dag")

#: Each option: how it is given, which calls take it, and what it makes of the row, by table.
OPTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, str]]] = {
    "conn": ({}, tuple(CALLS), dict.fromkeys((table for table, _ in CALLS.values()), "true")),
    "delay": (
        {"delay": "1h"},
        (*MANY, *RUNS, "send_event"),
        {
            "job": "due_at > now() + interval '59 minutes'",
            "run": "start_at > now() + interval '59 minutes' AND NOT awake",
            "inbox": "due_at > now() + interval '59 minutes'",
        },
    ),
    "at": (
        {"at": datetime.now(UTC) + timedelta(days=2)},
        (*MANY, *RUNS, "send_event"),
        {
            "job": "due_at > now() + interval '1 day'",
            "run": "start_at > now() + interval '1 day' AND NOT awake",
            "inbox": "due_at > now() + interval '1 day'",
        },
    ),
    "priority": ({"priority": 8}, (*MANY, *RUNS), dict.fromkeys(("job", "run"), "priority = 8")),
    "deadline": (
        {"deadline": "2h"},
        (*MANY, *RUNS),
        dict.fromkeys(("job", "run"), "deadline > now() + interval '119 minutes'"),
    ),
    "tags": ({"tags": ["a", "b"]}, (*MANY, *RUNS), dict.fromkeys(("job", "run"), "tags = '{a,b}'")),
    "unique_key": ({"unique_key": "k"}, (*MANY, *RUNS), {"job": "unique_key = 'k'", "run": "key = 'k'"}),
    "unique_for": (
        {"unique_key": "k", "unique_for": "1h"},
        MANY,
        {"job": "EXISTS (SELECT FROM tidemill.unique_window AS u WHERE u.unique_key = 'k')"},
    ),
    "debounce": (
        {"unique_key": "d", "debounce": "1h"},
        JOBS,
        {"job": "unique_key = 'd' AND due_at > now() + interval '53 minutes'"},
    ),
    "queue": ({"queue": "other"}, MANY, {"job": "queue = 'other'"}),
    "concurrency_key": ({"concurrency_key": "c"}, MANY, {"job": "concurrency_key = 'c'"}),
    "max_concurrency": ({"concurrency_key": "c", "max_concurrency": 3}, MANY, {"job": "max_concurrency = 3"}),
    "fair_key": ({"fair_key": "f"}, MANY, {"job": "split_part(fair_key, chr(31), 1) = 'f'"}),
    "rate_key": (
        {"rate_key": "r"},
        (*MANY, *RUNS),
        {"job": "rate_key = 'r'", "run": "rate_key = 'r' AND key_rate = 1000 AND NOT awake"},
    ),
    "webhook": (
        {"webhook": "https://example.org/hook"},
        MANY,
        {"job": "options -> 'webhook' -> 'args' ->> 'url' = 'https://example.org/hook'"},
    ),
    "required_model": ({"required_model": "tiny"}, MANY, {"job": "required_model = 'tiny'"}),
}


#: Options that cannot be given together.
APART = ({"delay", "at"}, {"debounce", "delay"}, {"debounce", "at"}, {"debounce", "unique_for"})


def groups_of(call: str) -> list[list[str]]:
    """The options that a call takes, in as few groups as can be given together."""
    groups: list[list[str]] = []
    for option, (_, takers, _) in OPTIONS.items():
        if call in takers:
            fitting = (group for group in groups if all(_fit(option, other) for other in group))
            group = next(fitting, None)
            groups.append([option]) if group is None else group.append(option)
    return groups


def _fit(one: str, other: str) -> bool:
    given, beside = OPTIONS[one][0], OPTIONS[other][0]
    return {one, other} not in APART and all(given[name] == beside[name] for name in given.keys() & beside.keys())


def guide_reasons() -> str:
    """What the guide says about the options that only jobs have."""
    lines = ["| option | for runs |", "|---|---|"]
    return "\n".join(
        [*lines, *(f"| `{option}` | {NOT_FOR_RUNS[option]} |" for option in OPTIONS if option in NOT_FOR_RUNS)]
    )


def guide_table() -> str:
    """The table of the guide: a row for each option, a column for each call."""
    heads = [name for _, name in CALLS.values()]
    lines = ["| option | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for option, (_, takers, _) in OPTIONS.items():
        cells = ["yes" if call in takers else "–" for call in CALLS]
        lines.append(f"| `{option}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)
