"""Events in a file, one JSON object a line, to which somebody appends: `JsonlSource("events.jsonl")`.

Its position is the number of bytes read, stored with the events themselves. A line without its end is left for later;
a file that has become shorter is read from its beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.monitors.sources.base import Incoming, Page, SourceError, read_incoming

_AT_ONCE = 1 << 22


class JsonlSource:
    """Reads a file of JSON lines from where it stopped."""

    overlap = 0.0
    overlap_most = 0.0

    def __init__(
        self,
        path: str | Path,
        *,
        id: str = "id",
        time: str | Sequence[str] = "at",
        page: int = 500,
        of: str | None = None,
    ) -> None:
        if page < 1:
            raise ConfigError(f"a page of {page} events brings nothing")
        self._path = Path(path)
        self._id, self._time = id, (time,) if isinstance(time, str) else tuple(time)
        self._page = page
        self._of = of

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[Page]:
        """Everything after a byte of the file."""
        offset = int(token or 0)
        while True:
            lines, offset = await asyncio.to_thread(self._lines, offset)
            if not lines:
                return
            yield self._as_page(lines, str(offset))

    async def history(self, entity: str, since: float, token: str | None) -> AsyncIterator[Page]:
        """The events of one entity, by its name in the field `of`."""
        if self._of is None:
            raise ConfigError("this source cannot give the past of one entity: name its field with of=")
        async for page in self.pages(since, token, 0.0):
            own = [e for e in page.events if e.at >= since and str(e.data.get(self._of)) == entity]
            yield msgspec.structs.replace(page, events=own)

    async def close(self) -> None: ...

    def _lines(self, offset: int) -> tuple[list[bytes], int]:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < offset:
                    offset = 0
                file.seek(offset)
                lines: list[bytes] = []
                while len(lines) < self._page:
                    line = file.readline(_AT_ONCE)
                    if not line.endswith(b"\n"):
                        if len(line) == _AT_ONCE:
                            raise SourceError(
                                f"{self._path}: the line at byte {offset} is longer than {_AT_ONCE} bytes"
                            )
                        break
                    offset += len(line)
                    lines.append(line)
                return lines, offset
        except FileNotFoundError as error:
            raise SourceError(f"{self._path}: there is no such file yet") from error
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read: {error}") from error

    def _as_page(self, lines: list[bytes], token: str) -> Page:
        events: list[Incoming] = []
        unreadable: list[str] = []
        for line in lines:
            text = line.strip()
            if not text:
                continue
            try:
                events.append(read_incoming(text, id=self._id, time=self._time))
            except ValueError as error:
                unreadable.append(f"{error}: {text[:120].decode(errors='replace')}")
        return Page(events, token=token, unreadable=tuple(unreadable))
