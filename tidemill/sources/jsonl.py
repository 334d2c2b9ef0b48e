"""The lines of a file, one JSON value per line, read on from a stored position as the file grows.

A position is the number of bytes up to and including a line. An unfinished last line is left for later.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.sources.base import NEAR, RecordPage, Source, SourceContext, SourceError, read_event
from tidemill.sources.delivery import Delivery
from tidemill.sources.file_changes import FileChanges
from tidemill.sources.page_consumer import LEASE, PageConsumer

PAGE_BYTES = 1 << 22
LONGEST_LINE = 1 << 26


class JsonlSource(Source, frozen=True, tag="jsonl"):
    """A file of JSON lines.

    A monitor reads a file from its beginning that has become shorter, or that has no line any more that ends where it
    has stopped; a stream refuses it, for it cannot tell old lines from new ones.
    """

    path: str | Path
    follow: bool = True
    """Whether more lines may be appended; if not, the last line needs no line end."""
    of: str | None = None
    """The field of a record with the entity that it is about, for backfills."""
    lease: float = LEASE
    """How many seconds a dispatcher that has stopped answering stays the reader."""

    @property
    def default_name(self) -> str:
        return Path(self.path).stem

    def reader(self, context: SourceContext) -> JsonlReader:
        return JsonlReader(self, restart=True)

    def consumer(self, context: SourceContext) -> PageConsumer:
        reader = JsonlReader(self, restart=False)
        return PageConsumer(self, reader, context, part=str(self.path), numbered=False, lease=self.lease)


class JsonlReader:
    overlap = overlap_most = 0.0
    idle = NEAR

    def __init__(self, source: JsonlSource, *, restart: bool) -> None:
        """`restart`: a file that has become shorter is read from its beginning."""
        self._source, self._restart = source, restart
        self._changes: FileChanges | None = None

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        """All lines after a byte of the file."""
        offset = int(token or 0)
        while True:
            before = offset
            records, offset = await asyncio.to_thread(self._read, offset)
            if offset == before:
                return
            yield RecordPage(records, token=str(offset))

    async def history(self, entity: str, since: float, token: str | None) -> AsyncIterator[RecordPage]:
        """The lines of one entity, by its name in the field `of`."""
        if self._source.of is None:
            raise ConfigError("this source cannot give the past of one entity: name its field with of=")
        async for page in self.pages(since, token, 0.0):
            own = [record for record in page.records if self._is_about(record, entity, since)]
            yield msgspec.structs.replace(page, records=own)

    async def check(self, token: str | None) -> None:
        """Refuse a file that is missing, or that cannot be the one that was read up to here."""
        await asyncio.to_thread(self._read, int(token or 0))

    async def lag(self, token: str | None) -> int:
        """The number of bytes that are not read yet: lines are not counted before they are read."""
        return max(0, await asyncio.to_thread(os.path.getsize, self._source.path) - int(token or 0))

    async def wait(self) -> None:
        """Return when the file has changed, where the platform tells."""
        if self._changes is None:
            self._changes = FileChanges(self._source.path)
        await self._changes.wait()

    async def close(self) -> None:
        if self._changes is not None:
            self._changes.close()

    def _is_about(self, record: Delivery, entity: str, since: float) -> bool:
        try:
            event = read_event(record, self._source.id, self._source.time)
        except ValueError:
            return False
        return event.at >= since and str(event.data.get(self._source.of)) == entity

    def _read(self, offset: int) -> tuple[list[Delivery], int]:
        where, records, begin = f"source {self._source.name}: {self._source.path}", list[Delivery](), offset
        try:
            with open(self._source.path, "rb") as file:
                if self._is_another(file, offset):
                    if not self._restart:
                        raise SourceError(
                            f"{where} was read up to byte {offset}, and no line ends there now: it is another file "
                            "now; give the new one another name"
                        )
                    begin = offset = 0
                file.seek(offset)
                while len(records) < self._source.page and offset - begin < PAGE_BYTES:
                    line = file.readline(LONGEST_LINE)
                    if len(line) == LONGEST_LINE:
                        raise SourceError(f"{where}: the line at byte {offset} is longer than {LONGEST_LINE} bytes")
                    if not line or (self._source.follow and not line.endswith(b"\n")):
                        break  # A line without its end is still being written.
                    offset += len(line)
                    if line.strip():
                        records.append(Delivery(line.rstrip(b"\r\n"), offset))
                return records, offset
        except FileNotFoundError as error:
            raise SourceError(f"{where}: there is no such file") from error
        except OSError as error:
            raise SourceError(f"{where} cannot be read: {error}") from error

    def _is_another(self, file: BinaryIO, offset: int) -> bool:
        """Whether this cannot be the file that was read up to here: it is shorter, or has no line that ends here."""
        if not offset or file.seek(0, os.SEEK_END) < offset:
            return offset > 0
        file.seek(offset - 1)
        return self._source.follow and file.read(1) != b"\n"
