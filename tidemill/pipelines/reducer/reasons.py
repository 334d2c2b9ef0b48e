"""Why a state is built, or not: each reason is data that the command line, the API and the console show.

`Build` reasons ask for a build. `Hold` reasons say why one that is needed, or was asked for, does not happen now.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec


class Missing(msgspec.Struct, frozen=True, tag="missing"):
    """There is no output yet."""

    def __str__(self) -> str:
        return "it is missing"


class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    """The output was there and is gone."""

    def __str__(self) -> str:
        return "its output was deleted"


class Edited(msgspec.Struct, frozen=True, tag="edited"):
    """The output is not what was built: somebody has changed it, or put it there."""

    known: bool = True

    def __str__(self) -> str:
        return "its output was changed by hand" if self.known else "its output was put there by somebody else"


class TooSmall(msgspec.Struct, frozen=True, tag="too_small"):
    """The output is smaller than its stage demands."""

    size: int
    least: int

    def __str__(self) -> str:
        return f"its output has {self.size} bytes, and must have {self.least}"


class CodeChanged(msgspec.Struct, frozen=True, tag="code_changed"):
    """The stage's code is not the one that built it; `parts` says what of it has changed."""

    before: str
    after: str
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = ", ".join(self.parts[:4]) + (f" and {len(self.parts) - 4} more" if len(self.parts) > 4 else "")
        return f"its code changed: {what}" if what else "its code changed"


class InputChanged(msgspec.Struct, frozen=True, tag="input_changed"):
    """An input's content is not the one that it was built from."""

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = [
            f"{word} {', '.join(paths[:3])}{f' and {len(paths) - 3} more' if len(paths) > 3 else ''}"
            for word, paths in (("changed", self.changed), ("added", self.added), ("removed", self.removed))
            if paths
        ]
        return f"its inputs are others: {'; '.join(told)}" if told else "its inputs are others"


class Invalidated(msgspec.Struct, frozen=True, tag="invalidated"):
    """Somebody asked for it to be built again."""

    by: str = ""

    def __str__(self) -> str:
        return f"it was invalidated by {self.by}" if self.by else "it was invalidated"


class RetryDue(msgspec.Struct, frozen=True, tag="retry_due"):
    """It failed, and its time to be tried again has come."""

    attempts: int
    error: str

    def __str__(self) -> str:
        return f"it failed {_times(self.attempts)} and is due to be tried again (last: {self.error})"


Build = Missing | Deleted | Edited | TooSmall | CodeChanged | InputChanged | Invalidated | RetryDue


class Blocked(msgspec.Struct, frozen=True, tag="blocked"):
    """An input is not there, or is about to be built again: not a failure of this state."""

    waits_for: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.waits_for) - 2} more" if len(self.waits_for) > 2 else ""
        return f"it waits for {', '.join(self.waits_for[:2])}{more}"


class BackingOff(msgspec.Struct, frozen=True, tag="backing_off"):
    """It failed, and is tried again at a later time."""

    attempts: int
    error: str
    retry_at: float

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.retry_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"it failed {_times(self.attempts)} and is tried again at {moment} (last: {self.error})"


class NeedsAttention(msgspec.Struct, frozen=True, tag="needs_attention"):
    """It failed too often: somebody must retry it, or its code or inputs must change."""

    attempts: int
    error: str

    def __str__(self) -> str:
        return f"it failed {_times(self.attempts)} and needs attention until it is retried by hand (last: {self.error})"


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """Somebody has paused its pipeline or stage."""

    by: str = ""

    def __str__(self) -> str:
        return f"it is paused by {self.by}" if self.by else "it is paused"


class NeedsApproval(msgspec.Struct, frozen=True, tag="needs_approval"):
    """So many states of its stage would be built again that somebody must agree first."""

    states: int
    above: int
    because: Build

    def __str__(self) -> str:
        return f"{self.states} states would be built again, more than {self.above}: it waits for approval"


Hold = Blocked | BackingOff | NeedsAttention | Paused | NeedsApproval
Reason = Build | Hold


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def kind_of_reason(reason: Reason) -> str:
    """The reason's name in data: `code_changed`."""
    return str(reason.__struct_config__.tag)
