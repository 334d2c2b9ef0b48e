"""Why a state is built, or not: each reason is data for the command line, the API and the console.

`Build` reasons request a build. `Hold` reasons say why a needed or requested build does not happen now.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec


class Missing(msgspec.Struct, frozen=True, tag="missing"):
    """There is no output yet."""

    def __str__(self) -> str:
        return "it is missing"


class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    """The output existed and was removed."""

    def __str__(self) -> str:
        return "its output was deleted"


class Edited(msgspec.Struct, frozen=True, tag="edited"):
    """The output is not what was built: it was edited, or written by another program."""

    known: bool = True

    def __str__(self) -> str:
        return "its output was edited" if self.known else "its output was written by another program"


class TooSmall(msgspec.Struct, frozen=True, tag="too_small"):
    """The output is smaller than its stage requires."""

    size: int
    least: int

    def __str__(self) -> str:
        return f"its output has {self.size} bytes, and must have {self.least}"


class CodeChanged(msgspec.Struct, frozen=True, tag="code_changed"):
    """The stage's code differs from the one that built the state; `parts` are the changed parts."""

    before: str
    after: str
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = ", ".join(self.parts[:4]) + (f" and {len(self.parts) - 4} more" if len(self.parts) > 4 else "")
        return f"its code changed: {what}" if what else "its code changed"


class InputChanged(msgspec.Struct, frozen=True, tag="input_changed"):
    """The content of an input differs from the one that the state was built from; its code may have changed as well."""

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    code_changed: bool = False

    def __str__(self) -> str:
        differences = [
            f"{word} {', '.join(paths[:3])}{f' and {len(paths) - 3} more' if len(paths) > 3 else ''}"
            for word, paths in (("changed", self.changed), ("added", self.added), ("removed", self.removed))
            if paths
        ]
        code = ", and its code changed" if self.code_changed else ""
        return (
            f"its inputs are others: {'; '.join(differences)}{code}" if differences else f"its inputs are others{code}"
        )


class Invalidated(msgspec.Struct, frozen=True, tag="invalidated"):
    """An operator has requested a rebuild."""

    by: str = ""

    def __str__(self) -> str:
        return f"it was invalidated by {self.by}" if self.by else "it was invalidated"


class RetryDue(msgspec.Struct, frozen=True, tag="retry_due"):
    """It failed, and its retry is due."""

    attempts: int
    error: str

    def __str__(self) -> str:
        return f"it failed {_times(self.attempts)} and its retry is due (last: {self.error})"


Build = Missing | Deleted | Edited | TooSmall | CodeChanged | InputChanged | Invalidated | RetryDue


class Blocked(msgspec.Struct, frozen=True, tag="blocked"):
    """An input is missing or about to be rebuilt: not a failure of this state."""

    waits_for: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.waits_for) - 2} more" if len(self.waits_for) > 2 else ""
        return f"it waits for {', '.join(self.waits_for[:2])}{more}"


class NoPartner(msgspec.Struct, frozen=True, tag="no_partner"):
    """Inputs that are joined with others do not exist yet: `missing` are their paths, with * for what is not known."""

    missing: tuple[str, ...]

    def __str__(self) -> str:
        return f"it waits for {' and '.join(self.missing)}, which its other inputs are joined with"


class BackingOff(msgspec.Struct, frozen=True, tag="backing_off"):
    """It failed, and is retried later."""

    attempts: int
    error: str
    retry_at: float

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.retry_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"it failed {_times(self.attempts)} and is retried at {moment} (last: {self.error})"


class NeedsAttention(msgspec.Struct, frozen=True, tag="needs_attention"):
    """It failed too often: it must be retried by an operator, or its code or inputs must change."""

    attempts: int
    error: str

    def __str__(self) -> str:
        return f"it failed {_times(self.attempts)} and needs attention: retry it (last: {self.error})"


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """An operator has paused its pipeline or stage."""

    by: str = ""
    because: str = ""

    def __str__(self) -> str:
        because = f"; otherwise it would be built: {self.because}" if self.because else ""
        return f"it is paused by {self.by}{because}" if self.by else f"it is paused{because}"


class NeedsApproval(msgspec.Struct, frozen=True, tag="needs_approval"):
    """So many states of its stage would be rebuilt that an operator must approve it."""

    states: int
    above: int
    because: Build

    def __str__(self) -> str:
        if self.states > self.above:
            many = f"{self.states} states would be rebuilt, more than {self.above}"
        else:
            many = f"{self.states} states are left of a rebuild of more than {self.above}"
        return f"{self.because}; {many}: it waits for approval"


Hold = Blocked | NoPartner | BackingOff | NeedsAttention | Paused | NeedsApproval
Reason = Build | Hold


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def kind_of_reason(reason: Reason) -> str:
    """The reason's name in data: `code_changed`."""
    return str(reason.__struct_config__.tag)
