"""What operations need to know of an application's code."""

from __future__ import annotations

from typing import Any, Protocol

from tidemill.engine.jobs.task import TaskRegistry
from tidemill.engine.settings import Settings


class Declarations(Protocol):
    """What an application declares. `App` is one."""

    @property
    def name(self) -> str: ...

    @property
    def tasks(self) -> TaskRegistry: ...

    @property
    def models(self) -> Any: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def runs(self) -> Any: ...

    @property
    def streams(self) -> Any: ...

    @property
    def monitors(self) -> Any: ...

    @property
    def pipelines(self) -> Any: ...
