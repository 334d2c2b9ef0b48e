"""Writes manifests in batches, because they are large where there are many states.

They are written when the pipeline is idle: after a second, or after half a minute for large ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.pipelines.reducer import reasons
from tidemill.pipelines.reducer.facts import PipelineFacts
from tidemill.pipelines.reducer.plan import Adoption, BuildPlan
from tidemill.pipelines.reducer.staleness import input_key, input_pairs
from tidemill.pipelines.runner.log import log
from tidemill.pipelines.stores.base import ManifestEntry, States, StateStoreError
from tidemill.store.database import Database
from tidemill.store.states.states import BUILT_AT

SOON, LATER = 1.0, 30.0  # idle seconds before manifests are written: small ones, large ones
LARGE = 20_000  # states of a stage
AT_ONCE = 2000  # states processed at once


class Manifests:
    """The manifests of one pipeline."""

    def __init__(self, pipeline: Pipeline, states: States, world: PipelineFacts) -> None:
        self._pipeline = pipeline
        self._states = states
        self._world = world
        self._due: dict[str, dict[str, ManifestEntry | None]] = {}
        self._noted_at = 0.0

    def note(self, stage: Stage, entities: Iterable[str], times: Mapping[str, datetime] | None = None) -> None:
        """Mark the manifests of new states as due; the states were built now or at these times."""
        self._noted_at = time.monotonic()
        records = self._world.records[stage.name]
        by = f"{self._pipeline.name}#{stage.name}"
        for entity in entities:
            record = records[entity]
            if record.is_nothing:
                continue  # The manifest entry was removed together with the file.
            at = (times or {}).get(entity) or datetime.now(UTC)
            stamp = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            outputs = input_pairs(record.content) if stage.scatter else {stage.quick_path(entity): record.content}
            for path, content in outputs.items():
                directory, _, name = path.rpartition("/")
                entry = ManifestEntry(record.code, content, stamp, by, input_key(record.inputs))
                self._due.setdefault(directory, {})[name] = entry

    def due_in(self) -> float | None:
        """Seconds until a manifest is due, if any is."""
        if not self._due:
            return None
        large = any(len(records) > LARGE for records in self._world.records.values())
        return max(0.0, self._noted_at + (LATER if large else SOON) - time.monotonic())

    async def catch_up(self, database: Database) -> None:
        """Add states to the manifests that were built while no process wrote them."""
        known = _Known(self._states)
        for stage in self._pipeline.stages.values():
            missing: list[str] = []
            for at, (entity, record) in enumerate(list(self._world.records[stage.name].items())):
                if at % AT_ONCE == 0:
                    await asyncio.sleep(0)  # There may be many: let other tasks run.
                if not record.content or record.is_nothing or stage.scatter:
                    continue
                path = stage.quick_path(entity)
                entry = await known.entry(path)
                if path in self._world.files and (entry is None or entry.content_hash != record.content):
                    missing.append(entity)
            if missing:
                found = await database.fetch(BUILT_AT, self._pipeline.name, stage.name, missing)
                self.note(stage, missing, {row["entity"]: row["built_at"] for row in found})

    async def flush(self) -> None:
        """Write the manifests that are due."""
        due, self._due = self._due, {}
        for directory, entries in due.items():
            try:
                await self._states.keep_manifest(directory, entries)
            except (OSError, StateStoreError) as error:
                log.error("a manifest cannot be written", directory=directory, error=str(error))
                self._due.setdefault(directory, {}).update(entries)

    async def recognise(self, plan: BuildPlan) -> list[Adoption]:
        """Adopt outputs that the database does not know but a manifest does."""
        known, found = _Known(self._states), list[Adoption]()
        for step in plan.builds:
            if step.reason != reasons.Edited(known=False):
                continue
            path = step.stage.quick_path(step.entity)
            entry, fact = await known.entry(path), self._world.files[path]
            if (
                entry is not None
                and entry.content_hash == fact.content
                and entry.code_hash == step.stage.code.total
                and entry.inputs == input_key(step.inputs)
            ):
                seen = (fact.content, fact.size, fact.signature)
                found.append(Adoption(step.stage, step.entity, step.inputs, step.paths, *seen, step.version))
        return found


class _Known:
    """Manifests, each read once."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._read: dict[str, dict[str, ManifestEntry]] = {}

    async def entry(self, path: str) -> ManifestEntry | None:
        """The entry of a path in its directory's manifest."""
        directory, _, name = path.rpartition("/")
        if directory not in self._read:
            try:
                self._read[directory] = await self._states.manifest(directory)
            except StateStoreError as error:
                log.warning("a manifest cannot be used", error=str(error))
                self._read[directory] = {}
        return self._read[directory].get(name)
