"""A proxy in front of PostgreSQL that counts the queries that pass, exactly and without the server's help."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

SOCKET = ".s.PGSQL.5432"
EXECUTE, SIMPLE_QUERY = ord("E"), ord("Q")
CHUNK = 65_536


class CountingProxy:
    """Listens on a Unix socket in `folder` for what would go to `dsn`."""

    def __init__(self, dsn: str, folder: Path) -> None:
        url = urlsplit(dsn)
        options = dict(parse_qsl(url.query))
        self._host = options.pop("host", None) or url.hostname or "localhost"
        self._port = int(options.pop("port", None) or url.port or 5432)
        self._folder = folder
        log_in = f"{url.netloc.rpartition('@')[0]}@" if "@" in url.netloc else ""
        self.dsn = f"{url.scheme}://{log_in}{url.path}?{urlencode({'host': str(folder), **options})}"
        self.queries = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._pass_on, str(self._folder / SOCKET))
        try:
            yield
        finally:
            server.close()

    async def _pass_on(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._host.startswith("/"):
            server, to_server = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            server, to_server = await asyncio.open_connection(self._host, self._port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(server, to_client))
                tasks.create_task(self._copy_and_count(client, to_server))
        except* (asyncio.IncompleteReadError, ConnectionError):
            pass  # one side has closed: close the other
        finally:
            to_server.close()
            to_client.close()

    async def _copy_and_count(self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        # The first message has no type; of all others the first byte tells what they are.
        length = await client.readexactly(4)
        to_server.write(length + await client.readexactly(int.from_bytes(length) - 4))
        while True:
            head = await client.readexactly(5)
            self.queries += head[0] in (EXECUTE, SIMPLE_QUERY)
            to_server.write(head + await client.readexactly(int.from_bytes(head[1:]) - 4))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
    raise ConnectionResetError
