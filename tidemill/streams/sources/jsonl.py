"""Lines of a file as a source: one JSON value a line, read from where it was left, followed as it grows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from tidemill.store.database import Executor
from tidemill.streams.definition.message import Delivery
from tidemill.streams.sources.base import Pause, Place, Source, SourceError
from tidemill.streams.sources.cursor import Cursors

CHUNK = 1 << 20


class JsonlSource(Source, frozen=True, tag="jsonl"):
    """The lines of a file. A position is the number of bytes up to and with a line."""

    path: str
    follow: bool = True
    """Whether to wait for more at its end."""

    @property
    def default_name(self) -> str:
        return Path(self.path).stem

    def tap(self, place: Place) -> JsonlTap:
        return JsonlTap(self, place)


class JsonlTap:
    transactional = True

    def __init__(self, source: JsonlSource, place: Place) -> None:
        self._source = source
        self._cursors = Cursors(source.name, place)
        self._pause = Pause(0.05, 1.0)
        self._position = 0

    async def start(self) -> None:
        try:
            stat = await asyncio.to_thread(os.stat, self._source.path)
        except FileNotFoundError:
            raise SourceError(f"source {self._source.name}: there is no file {self._source.path}") from None
        cursor = await self._cursors.own(0, self._source.path)
        self._position = cursor.position or 0
        if stat.st_size < self._position:
            raise SourceError(
                f"source {self._source.name}: {self._source.path} has {stat.st_size} bytes and was read up to "
                f"{self._position}: it is another file now; give the new one another name"
            )

    async def poll(self, most: int) -> list[Delivery]:
        lines = await asyncio.to_thread(self._read, most)
        if not lines:
            await self._pause.wait()
            return []
        self._pause.reset()
        deliveries: list[Delivery] = []
        for line in lines:
            self._position += len(line)
            if line.strip():
                deliveries.append(Delivery(line.rstrip(b"\r\n"), self._position))
        return self._cursors.take(deliveries)

    def _read(self, most: int) -> list[bytes]:
        with open(self._source.path, "rb") as file:
            file.seek(self._position)
            lines: list[bytes] = []
            size = 0
            while len(lines) < most and size < CHUNK and (line := file.readline()):
                if not line.endswith(b"\n") and self._source.follow:
                    break  # Somebody is still writing it.
                lines.append(line)
                size += len(line)
            return lines

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._cursors.ack(deliveries)

    async def flush(self) -> None:
        await self._cursors.flush()

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to say: it is read again from the stored position."""

    async def settle(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        await self._cursors.settle(connection, deliveries)

    async def stop(self) -> None:
        await self._cursors.flush()

    async def lag(self) -> int | None:
        """In bytes: lines are not counted before they are read."""
        size = await asyncio.to_thread(os.path.getsize, self._source.path)
        return max(0, size - self._position)
