"""The logger of pipelines, loaded on first use: a full check must start fast."""

from __future__ import annotations

from typing import Any


class Log:
    """A logger with one name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog

        return getattr(structlog.get_logger(self._name), method)


log = Log("tidemill.pipelines")
