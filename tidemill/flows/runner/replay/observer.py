"""What a simulation does at the operations of a step."""

from __future__ import annotations

from typing import Any, Protocol

from tidemill.flows.errors import StepDiverged


class StepObserver(Protocol):
    """What a simulation does at the operations of a step."""

    async def pause(self) -> None:
        """Let other things happen between two operations."""
        ...

    def did(self, place: tuple[Any, ...], value: Any) -> None:
        """Remember the value of an operation."""
        ...

    def replayed(self, place: tuple[Any, ...], value: Any) -> None:
        """Compare the value of an operation that was replayed with the remembered one."""
        ...

    def diverged(self, run: str, error: StepDiverged) -> None:
        """Report a step that does not follow its record."""
        ...
