"""What docs/database.md takes for granted: an application with two folders of migrations, and a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.guide import database_url
from tidemill import App
from tidemill.store.database import Database, DatabaseSettings

__all__ = ["Path"]

app = App("shop")


async def prepare(names: dict[str, Any]) -> None:
    for folder in ("migrations", "stock"):
        Path(folder).mkdir()
        Path(folder, "0001_sale.sql").write_text("CREATE TABLE sale (id integer);")
        Path(folder, "0001_sale.down.sql").write_text("DROP TABLE sale;")
    names["database"] = await Database(DatabaseSettings(url=database_url())).__aenter__()


async def after(names: dict[str, Any]) -> None:
    async with app.running():
        rows = await names["database"].fetch(
            "SELECT table_schema FROM information_schema.tables WHERE table_name='sale'"
        )
        assert {row["table_schema"] for row in rows} == {"shop", "stock"}
    await names["database"].close()
