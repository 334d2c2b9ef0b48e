"""Putting results in place: all or nothing for each state, and only if it was built from what is still there.

1. the contents are stored under hidden names, and made durable;
2. the database is told what is about to be put in place (the intent);
3. in one transaction that holds the states' rows: whatever is overtaken, or whose inputs have changed, is dropped; the
   rest is renamed into place, becomes the truth in the database, and is announced.

Whoever dies between renaming and committing leaves an output that is exactly what its intent says: the next one who
looks finishes the build (`finish_intents`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import msgspec

from tidemill.pipelines.build import Result
from tidemill.pipelines.model import Stage
from tidemill.pipelines.plan import Step
from tidemill.pipelines.staleness import Failure, Record, input_key, input_text
from tidemill.pipelines.states import Draft, Prepared, States, hash_content
from tidemill.pipelines.world import World
from tidemill.store.database import Database
from tidemill.store.states import (
    FIND_INTENTS,
    Built,
    NewFailure,
    News,
    NewState,
    adopt_states,
    fail_states,
    hold_intended,
    intend,
    notify_states,
    promote,
)


class Committed(msgspec.Struct):
    """What came of a batch: paths that are new, states that are done, that failed, that must be looked at again."""

    changed: list[str]
    done: list[str]
    failed: list[str]
    overtaken: list[str]


class Committer:
    """Puts results of one pipeline in place."""

    def __init__(self, database: Database, states: States, pipeline: str, builder: str) -> None:
        self._database = database
        self._states = states
        self._pipeline = pipeline
        self._builder = builder

    async def commit(
        self,
        stage: Stage,
        results: Sequence[tuple[Step, Result]],
        world: World,
        needs: Mapping[str, Mapping[str, int]] | None = None,
    ) -> Committed:
        """Put results in place, and store failures. `needs` are signatures of inputs, if not those of the world."""
        news = Committed([], [], [], [])
        await self._fail(stage, [(step, result) for step, result in results if result.error is not None], world, news)
        good = [(step, result) for step, result in results if result.error is None]
        if not good:
            return news
        prepared: dict[str, list[Prepared]] = {}
        drafts: list[Draft] = []
        for step, result in good:
            if needs is not None:
                needed = dict(needs[step.entity])
            else:
                needed = {path: world.files[path].signature for group in step.paths for path in group}
            prepared[step.entity] = []
            for path, content in result.outputs.items():
                same = _unchanged(world, path, content)
                if same is not None:
                    there = world.files[path].signature
                    prepared[step.entity].append(Prepared(path, *same, needed, step.entity, there))
                else:
                    fact = world.files.get(path)
                    before = None if fact is None else fact.signature
                    drafts.append(Draft(path, content, needed, step.entity, before))
        for each in await self._states.prepare(drafts):
            prepared[each.entity].append(each)
        good = await self._drop_small(stage, good, prepared, world, news)
        await self._put_in_place(stage, good, prepared, world, news)
        return news

    async def _put_in_place(
        self,
        stage: Stage,
        good: Sequence[tuple[Step, Result]],
        prepared: Mapping[str, list[Prepared]],
        world: World,
        news: Committed,
    ) -> None:
        database, by = self._database, secrets.token_hex(8)
        code = stage.code.total
        new = {
            step.entity: NewState(
                step.entity, _content(stage, prepared[step.entity]), code, step.inputs,
                sum(each.size for each in prepared[step.entity]), step.version,
            )
            for step, _ in good
        }  # fmt: skip
        async with database.transaction() as connection:
            going = await intend(database, connection, self._pipeline, stage.name, by, list(new.values()))
        signatures: dict[str, int] = {}
        built: list[Built] = []
        async with database.transaction() as connection:
            held = await hold_intended(
                database, connection, self._pipeline, stage.name, by, [new[entity] for entity in going]
            )
            ready = [each for entity in new if entity in held for each in prepared[entity]]
            signatures = await self._states.publish(ready)
            for step, result in good:
                mine = prepared[step.entity]
                if step.entity in held and all(each.path in signatures for each in mine):
                    outcome = "same" if all(each.held is None for each in mine) else "built"
                    alone = signatures[mine[0].path] if len(mine) == 1 else 0
                    built.append(Built(step.entity, alone, result.took, outcome, str(step.reason), result.log or None))
            versions = await promote(database, connection, self._pipeline, stage.name, self._builder, built)
            changed = [each.path for one in built if one.outcome == "built" for each in prepared[one.entity]]
            news_for_all = News(self._pipeline, self._builder, stage.name, list(versions), changed)
            await notify_states(database, connection, news_for_all)
        await self._states.discard([each for entity in new if entity not in versions for each in prepared[entity]])
        for step, _ in good:
            if step.entity in versions:
                for each in prepared[step.entity]:
                    world.see(each.path, signatures[each.path])
                    fact = world.files[each.path]
                    fact.known, fact.content, fact.size = fact.signature, each.content, each.size
                state = new[step.entity]
                world.records[stage.name][step.entity] = Record(
                    state.content, code, state.inputs, state.size, versions[step.entity]
                )
                world.failures[stage.name].pop(step.entity, None)
                news.done.append(step.entity)
            else:
                news.overtaken.append(step.entity)
        news.changed += changed

    async def _drop_small(
        self,
        stage: Stage,
        good: list[tuple[Step, Result]],
        prepared: Mapping[str, list[Prepared]],
        world: World,
        news: Committed,
    ) -> list[tuple[Step, Result]]:
        """Streams show their size only now."""
        least = stage.options.min_size
        small = [pair for pair in good if least and any(each.size < least for each in prepared[pair[0].entity])]
        if not small:
            return good
        for step, result in small:
            size = min(each.size for each in prepared[step.entity])
            result.error = f"the result has {size} bytes, and must have at least {least}"
            await self._states.discard(prepared[step.entity])
        await self._fail(stage, small, world, news)
        return [pair for pair in good if pair[1].error is None]

    async def _fail(self, stage: Stage, bad: Sequence[tuple[Step, Result]], world: World, news: Committed) -> None:
        if not bad:
            return
        failures = [
            NewFailure(
                step.entity, stage.code.total, input_key(step.inputs), (result.error or "")[:2000],
                result.log[:20_000], result.took, str(step.reason),
            )
            for step, result in bad
        ]  # fmt: skip
        rows = await fail_states(
            self._database, self._pipeline, stage.name, failures, builder=self._builder, waits=stage.options.backoff
        )
        for row in rows:
            values = dict(row)
            world.failures[stage.name][values.pop("entity")] = msgspec.convert(values, Failure)
            news.failed.append(row["entity"])


async def finish_intents(
    database: Database, pipeline: str, stage: Stage, found: Mapping[str, tuple[str, int, int]], *, by: str
) -> dict[str, Record]:
    """Finish builds whose builder died after it had put its result in place.

    `found` says what is in place: content, size and signature by entity.
    """
    rows = await database.fetch(FIND_INTENTS, pipeline, stage.name, list(found))
    left = [row for row in rows if row["intent_content"] == found[row["entity"]][0]]
    if not left:
        return {}
    adopted = await adopt_states(
        database, pipeline, stage.name,
        [
            (row["entity"], row["intent_content"], row["intent_code"], row["intent_inputs"], *found[row["entity"]][1:])
            for row in left
        ],
        by=by, outcome="finished",
    )  # fmt: skip
    return {
        row["entity"]: Record(
            row["intent_content"], row["intent_code"], row["intent_inputs"], row["intent_size"], adopted[row["entity"]]
        )
        for row in left
    }


def _unchanged(world: World, path: str, content: object) -> tuple[str, int] | None:
    """The hash and size of content that is in place already: writing it again would only cost time."""
    if not isinstance(content, bytes):
        return None
    fact = world.files.get(path)
    if fact is None or fact.known != fact.signature or fact.size != len(content):
        return None
    return (fact.content, fact.size) if hash_content(content) == fact.content else None


def _content(stage: Stage, prepared: Sequence[Prepared]) -> str:
    if not stage.scatter:
        return prepared[0].content
    return input_text([each.path for each in prepared], [each.content for each in prepared])
