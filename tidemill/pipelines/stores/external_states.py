"""External states: written into a pipeline from outside, such as by a plan of a stream.

Only paths that stages read and no stage writes are accepted. Builds from them start at once: the pipeline's runner is
notified when the writer's transaction commits.
"""

from __future__ import annotations

from tidemill.core.errors import ConfigError
from tidemill.pipelines.definition.declared import Pipelines
from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.stores.base import StateDraft
from tidemill.pipelines.stores.database import LONG_PATH, MOST_PATH, DatabaseStates
from tidemill.pipelines.view.pipeline_view import open_states
from tidemill.store.database import Database, Executor
from tidemill.store.states.blobs import write_blobs
from tidemill.store.states.origins import FileOrigin, note_origins
from tidemill.store.states.states import StatesChanged, notify_states


class Inputs:
    """Write access to the pipelines of an application."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines

    def check(self, pipeline: str | None, path: str) -> str:
        """The pipeline to write to; an error if the path is not one of its external inputs."""
        found = self._pipelines.require(pipeline)
        check_input(found, path)
        return found.name

    async def write(
        self, database: Database, connection: Executor, pipeline: str, states: dict[FileOrigin, bytes]
    ) -> None:
        """Write contents of files; in the connection's transaction if the states are in the database."""
        found = self._pipelines.require(pipeline)
        place, contents = open_states(found, database), {file.path: content for file, content in states.items()}
        if isinstance(place, DatabaseStates):
            await write_blobs(database, place.name, sorted(contents.items()), connection=connection)
        else:
            before = await place.read_signatures(contents)
            drafts = [StateDraft(path, content, {}, before=before[path]) for path, content in contents.items()]
            prepared = await place.prepare(drafts)
            done = await place.publish([each for each in prepared if each.error is None])
            missing = sorted(each.error or each.path for each in prepared if each.path not in done)
            if missing:  # The store may recover, so the write is retried.
                raise OSError(f"pipeline {pipeline}: {missing[0]} could not be put in place")
        await note_origins(database, connection, pipeline, states)
        await notify_states(database, connection, StatesChanged(pipeline, paths=sorted(contents)))


def check_input(pipeline: Pipeline, path: str) -> None:
    """Raise an error unless a stage reads this path and no stage writes it."""
    for stage in pipeline.stages.values():
        if stage.output.match(path) is not None:
            raise ConfigError(f"pipeline {pipeline.name}: {path} is made by stage {stage.name}: write what it takes in")
    if isinstance(pipeline.store, DatabaseStates) and len(path.encode()) > MOST_PATH:
        raise ConfigError(f"pipeline {pipeline.name}: {path[:60]}…: {LONG_PATH}")
    patterns = {one.pattern for stage in pipeline.stages.values() for one in stage.inputs}
    if not any(pattern.match(path) is not None for pattern in patterns):
        known = ", ".join(sorted(pattern.text for pattern in patterns))
        raise ConfigError(f"pipeline {pipeline.name}: no stage takes in {path}; they take in {known}")
