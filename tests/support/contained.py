"""The pieces of work of `tests/support/contained_app.py`, and what became of each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support import contained_app
from tidemill import App
from tidemill.store.database import Database
from tidemill.store.monitors.notices import NOTIFY_TASK

FLOWS = {
    "step_async": contained_app.StepAsync,
    "step_plain": contained_app.StepPlain,
    "step_queue": contained_app.StepQueue,
}


class Work:
    """The pieces of work of one application, and what became of them."""

    def __init__(self, app: App, database: Database, folder: Path) -> None:
        self.app, self.database, self.folder = app, database, folder
        self.ids: dict[tuple[str, str], int] = {}
        self.names: list[tuple[str, str]] = []
        self.seen: dict[tuple[str, str], str] = {}
        for name in ("done", "slow", "sources", *(f"{kind}/in" for kind in ("plain", "loop", "worker"))):
            (folder / name).mkdir(parents=True)
        (folder / "events.jsonl").touch()

    async def begin(self, pieces: Iterable[tuple[str, str, str]]) -> None:
        """Start pieces of work: place, name and behaviour of each."""
        app, events = self.app, []
        for place, name, how in pieces:
            self.names.append((place, name))
            if place.startswith("job_"):
                task = getattr(contained_app, place)
                self.ids[place, name] = (await app.enqueue(task.call(how=how, name=name))).id
            elif place == "model_load":
                model = f"model-{how or 'good'}"
                job = await app.enqueue(contained_app.model_load.call(name=name), required_model=model)
                self.ids[place, name] = job.id
            elif place.startswith("step_"):
                self.ids[place, name] = (await app.start(FLOWS[place], how=how)).id
            elif place == "dag_node":
                self.ids[place, name] = (await app.start(contained_app.dag, how=how)).id
            elif place.startswith("stream_"):
                await app.streams.publish("messages", {"place": place, "name": name, "how": how})
            elif place.startswith("stage_"):
                (self.folder / place.removeprefix("stage_") / "in" / f"{name}.txt").write_text(how)
            elif place == "monitor_source":
                (self.folder / "sources" / name).touch()
            else:
                said = {"place": place, "name": f"{place}.{name}", "how": how}
                events.append({"id": f"{place}.{name}", "at": time.time(), **said})
        with (self.folder / "events.jsonl").open("a") as file:
            file.write("".join(f"{json.dumps(event)}\n" for event in events))

    async def ended(self) -> dict[tuple[str, str], str]:
        """What became of each piece of work that has ended: its state, and the words that say why."""
        found: dict[tuple[str, str], str] = {}
        jobs = await self.database.fetch(
            "SELECT id, state, task, args ->> 'batch' AS batch, note, errors::text AS errors FROM tidemill.job_history"
        )
        runs = await self.database.fetch("SELECT id, state, note FROM tidemill.run WHERE state <> 'running'")
        letters = await self.database.fetch("SELECT payload, why, kind, error FROM tidemill.dead_letter")
        failures = await self.database.fetch("SELECT pipeline, entity, error FROM tidemill.state_failure")
        problems = await self.database.fetch("SELECT monitor, place, entity, error FROM tidemill.monitor_problem")
        alerts = await self.database.fetch("SELECT entity FROM tidemill.alert")
        unsent = await self.database.fetch(
            "SELECT a.entity, h.detail FROM tidemill.alert_history AS h JOIN tidemill.alert AS a ON a.id = h.alert "
            "WHERE h.action = 'notice failed'"
        )
        by_job, by_run = {row["id"]: row for row in jobs}, {row["id"]: row for row in runs}
        for (place, name), number in self.ids.items():
            row = (by_job if place.startswith(("job_", "model_")) else by_run).get(number)
            if row is not None:
                found[place, name] = f"{row['state']}: {row['note'] or ''} {row.get('errors') or ''}"
        for row in letters:
            said = json.loads(bytes(row["payload"]))
            found[said["place"], said["name"]] = f"dead letter: {row['why']} {row['kind']} {row['error']}"
        for row in failures:
            found[f"stage_{row['pipeline']}", row["entity"]] = f"failed: {row['error']}"
        for row in unsent:
            place, _, name = row["entity"].partition(".")
            found[place, name] = f"not sent: {row['detail']}"
        for row in jobs:
            if row["task"] == NOTIFY_TASK and row["state"] == "failed":
                place, _, name = row["batch"].partition("/")[2].partition(".")
                found[place, name] = f"failed: {row['note']}"
        for row in problems:
            if row["monitor"].startswith("source-"):
                found["monitor_source", row["monitor"].removeprefix("source-")] = f"not read: {row['error']}"
                continue
            for place, name in self.names:
                if f"{place}.{name}" in row["error"] or row["entity"] == f"{place}.{name}":
                    found[place, name] = f"set aside: {row['error']}"
        watched = {row["entity"] for row in alerts}
        for place, name in self.names:
            done = self.folder / "done" / f"{place}.{name}"
            built = self.folder / place.removeprefix("stage_") / "out" / f"{name}.txt"
            if (place, name) in found and place == "monitor_channel":
                continue  # One that comes back later is not sent any earlier.
            if done.exists() or (place.startswith("stage_") and built.exists()):
                found[place, name] = "succeeded"
            elif f"{place}.{name}" in watched and place != "monitor_channel":
                found.setdefault((place, name), "succeeded")
        return found

    async def all_ended(self) -> Any:
        found = {**self.seen, **await self.ended()}  # One row tells of the last problem of `entity=` only.
        self.seen = found
        return found if len(found) == len(self.names) else None
