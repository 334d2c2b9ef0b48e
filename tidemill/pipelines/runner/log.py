"""The log of pipelines, loaded when something is first said: a check of everything must begin at once."""

from __future__ import annotations

from typing import Any


class Log:
    """Says things under one name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog

        return getattr(structlog.get_logger(self._name), method)


log = Log("tidemill.pipelines")
