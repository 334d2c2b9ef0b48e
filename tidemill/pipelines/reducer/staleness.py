"""Whether a state is out of date, and why: a pure function of the facts.

The checks are ordered by what a person wants to know first. `None` means fresh.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

import msgspec

from tidemill.pipelines.reducer import reasons

OnEdit = Literal["rebuild", "adopt"]

#: The content of a state that its stage has skipped.
NOTHING = "-"

#: Seconds until the retry after the first failure, the second, ...
BACKOFF = (60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


class StateRecord(msgspec.Struct, gc=False):
    """The last build of a state. Empty strings mean that it was never built."""

    content: str  # the hash of the output
    code: str
    inputs: str  # what it was built from, as `input_text` writes it
    size: int = 0
    version: int = 0
    invalid_by: str | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether the stage has skipped this state."""
        return self.content == NOTHING


class BuildFailure(msgspec.Struct, frozen=True):
    """The newest failure of a state, for one code and one set of inputs."""

    code: str
    inputs: str
    attempts: int
    error: str
    failed_at: float
    retry_at: float | None  # None: needs attention


class StalenessRules(msgspec.Struct, frozen=True):
    """What a stage requires of its states."""

    code: str
    min_size: int = 0
    on_edit: OnEdit = "rebuild"


def staleness(
    rules: StalenessRules,
    record: StateRecord | None,
    failure: BuildFailure | None,
    *,
    content: str | None,
    size: int,
    inputs: str,
    now: float,
) -> reasons.Reason | None:
    """Why a state must be built, or must wait; None if it is fresh.

    content     the current hash of the output, None if it is missing
    inputs      the current inputs
    """
    reason = _out_of_date(rules, record, content, size, inputs)
    if reason is None:
        return None
    if failure is None or failure.code != rules.code or failure.inputs != input_key(inputs):
        return reason
    if failure.retry_at is None:
        return reasons.NeedsAttention(failure.attempts, failure.error)
    if failure.retry_at > now:
        return reasons.BackingOff(failure.attempts, failure.error, failure.retry_at)
    return reasons.RetryDue(failure.attempts, failure.error)


def _out_of_date(
    rules: StalenessRules, record: StateRecord | None, content: str | None, size: int, inputs: str
) -> reasons.Build | None:
    if record is None or not record.content:
        if content is None:
            return reasons.Missing()
        return None if rules.on_edit == "adopt" else reasons.Edited(known=False)
    if content is None and not record.is_nothing:
        return reasons.Deleted()
    if record.invalid_by is not None:
        return reasons.Invalidated(record.invalid_by)
    if record.inputs != inputs:
        change = input_change(record.inputs, inputs)
        return msgspec.structs.replace(change, code_changed=True) if record.code != rules.code else change
    if record.code != rules.code:
        return reasons.CodeChanged(record.code, rules.code)
    if record.is_nothing:
        return None if content is None or rules.on_edit == "adopt" else reasons.Edited()
    if record.content != content and rules.on_edit == "rebuild":
        return reasons.Edited()
    if size < rules.min_size:
        return reasons.TooSmall(size, rules.min_size)
    return None


def retry_at(attempts: int, failed_at: float, backoff: tuple[float, ...] = BACKOFF) -> float | None:
    """When a state that has failed this many times is retried; None when it needs attention."""
    return failed_at + backoff[attempts - 1] if attempts <= len(backoff) else None


def input_text(paths: Sequence[str], contents: Sequence[str], *, named: bool = True) -> str:
    """Inputs as one comparable text. Not `named`: a single input, whose path follows from its entity."""
    if not named:
        return contents[0]
    return "\n".join(f"{content} {_one_line(path)}" for path, content in zip(paths, contents, strict=True))


def input_pairs(text: str) -> dict[str, str]:
    """The parts of an input text by path; a single input has an empty path."""
    if not text or text == NOTHING:
        return {}
    lines = [line.partition(" ") for line in text.split("\n")]
    return {_as_it_was(path): content for content, _, path in lines}


def _one_line(path: str) -> str:
    """A path without line breaks, which separate the paths of a text."""
    return path.replace("\\", "\\\\").replace("\n", "\\n") if "\n" in path or "\\" in path else path


def _as_it_was(line: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], line) if "\\" in line else line


def input_key(text: str) -> str:
    """A short hash of a set of inputs."""
    return text if len(text) <= 40 else blake2b(text.encode(), digest_size=16).hexdigest()


def input_change(before: str, after: str) -> reasons.InputChanged:
    """What was added, removed and changed between two input texts."""
    old, new = input_pairs(before), input_pairs(after)
    if "" in old and len(new) == 1:
        return reasons.InputChanged()
    return reasons.InputChanged(
        changed=tuple(path for path in new if path in old and old[path] != new[path]),
        added=tuple(path for path in new if path not in old and path),
        removed=tuple(path for path in old if path not in new and path),
    )
