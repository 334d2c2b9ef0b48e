"""A page of live results: `python -m apps.content.page --port 8090`."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec
import uvicorn

from apps.content.app import app, prepare

LATEST = """
SELECT post, plan, source, found - 'vector' AS found, extract(epoch FROM at)::float8 AS at
FROM content_result ORDER BY at DESC LIMIT 40
"""
COUNTS = "SELECT plan, count(*) AS n FROM content_result GROUP BY plan ORDER BY plan"
PAGE = """<!doctype html><meta charset="utf-8"><title>content</title>
<style>
body{font:14px/1.5 system-ui;margin:2rem;max-width:70rem} table{border-collapse:collapse;width:100%}
td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top} code{font-size:12px}
#counts span{margin-right:1.5rem}
</style>
<h1>What the plans found</h1><p id="counts"></p>
<table><thead><tr><th>post<th>plan<th>source<th>found</tr></thead><tbody id="rows"></tbody></table>
<script>
async function show() {
  const told = await (await fetch("results")).json();
  counts.replaceChildren(...told.counts.map(each => Object.assign(document.createElement("span"),
    {textContent: each.plan + " " + each.n.toLocaleString()})));
  rows.replaceChildren(...told.latest.map(each => { const row = document.createElement("tr");
    for (const text of [each.post, each.plan, each.source, JSON.stringify(each.found)]) {
      row.append(Object.assign(document.createElement("td"), {textContent: text})); } return row; }));
}
show(); setInterval(show, 1000);
</script>"""


async def answer(path: str) -> tuple[int, bytes, bytes]:
    if path == "/":
        return 200, b"text/html; charset=utf-8", PAGE.encode()
    if path != "/results":
        return 404, b"text/plain", b"there is only / and /results here\n"
    database = await app._reach()
    latest = [{**dict(row), "found": msgspec.Raw(row["found"].encode())} for row in await database.fetch(LATEST)]
    counts = [dict(row) for row in await database.fetch(COUNTS)]
    return 200, b"application/json", msgspec.json.encode({"latest": latest, "counts": counts})


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await prepare()
            await send({"type": f"{message['type']}.complete"})
        await app.close()
        await send({"type": "lifespan.shutdown.complete"})
        return
    status, kind, body = await answer(scope["path"])
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8090)
    uvicorn.run(application, host="127.0.0.1", port=parser.parse_args().port, log_level="warning")


if __name__ == "__main__":
    main()
