"""Where the database is, and which application's tables are used."""

from __future__ import annotations

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.store.connection.libpq_files import with_service
from tidemill.store.connection.url import check_database_url
from tidemill.store.schemas import check_schema_name


class DatabaseSettings(msgspec.Struct, frozen=True):
    """Where the database is, and which application's tables are used.

    No URL means the embedded server under `directory`; no application means the only one in the database.
    """

    url: str | None = None
    directory: str = ".tidemill"
    schema: str = "tidemill"
    application: str | None = None
    pool_size: int = 8
    transaction_pooler: bool = False
    listen_url: str | None = None
    codec: str | None = None
    secret_key_file: str | None = None

    def validate(self) -> DatabaseSettings:
        check_schema_name(self.schema)
        for url in (self.url, self.listen_url):
            if url is not None:
                check_database_url(url)
        if self.pool_size < 1:
            raise ConfigError("pool_size must be at least 1")
        return self

    def resolved(self) -> DatabaseSettings:
        """The same with what the services of its URLs say."""
        urls = {name: with_service(url) for name in ("url", "listen_url") if (url := getattr(self, name))}
        return msgspec.structs.replace(self, **urls).validate()
