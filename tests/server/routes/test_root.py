"""Addresses at the root that other programs look for: metrics and health, never the console's page."""

from __future__ import annotations

from tests.support.web import web_server
from tidemill.store.database import Database


async def test_metrics_and_health_answer_at_the_root(database: Database, database_url: str) -> None:
    async with web_server(database_url) as web, web.client() as client:
        metrics = await client.get(f"{web.url}/metrics")
        assert metrics.status_code == 200
        assert metrics.headers["content-type"].startswith("text/plain")
        assert "# HELP tidemill_" in metrics.text
        assert (await client.get(f"{web.url}/healthz")).json() == {"ok": True}
        for address in ("/metrics/nothing", "/healthz/nothing"):
            assert (await client.get(web.url + address)).status_code == 404
