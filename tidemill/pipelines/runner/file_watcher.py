"""Receives the operating system's notifications of changed files."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import watchfiles

from tidemill.pipelines.runner.log import log
from tidemill.pipelines.runner.pending_changes import PendingChanges
from tidemill.pipelines.stores.files import FileStates
from tidemill.pipelines.view.pipeline_view import PipelineView

logging.getLogger("watchfiles").setLevel(logging.WARNING)  # It would log every file twice.

TOGETHER_MS, LOOK_EVERY_MS = 100, 50  # polling more often costs more than everything else


async def watch_files(pipeline_view: PipelineView, pending: PendingChanges) -> None:
    """Receive notifications until cancelled; if that is not possible, only scans find changes."""
    states = pipeline_view.states
    if not pipeline_view.pipeline.watch or not isinstance(states, FileStates):
        return
    root = states.root
    while True:
        folders = watched_folders(pipeline_view, root)
        ended = asyncio.Event()  # set by the watch itself on cancellation
        pending.is_notified = True
        try:
            async for changes in watchfiles.awatch(
                *folders, watch_filter=_is_shown, debounce=TOGETHER_MS, step=LOOK_EVERY_MS, stop_event=ended
            ):
                for _, path in changes:
                    _record_change(pipeline_view, pending, str(Path(path).relative_to(root)))
                pending.event.set()
                if watched_folders(pipeline_view, root) != folders:
                    break
        except (OSError, RuntimeError, ValueError) as error:
            pending.is_notified = False
            log.warning(
                "changes by others are found by scans only", pipeline=pipeline_view.pipeline.name, error=str(error)
            )
            return
        pending.notice.everything = True  # Changes may have been missed without a watch.
        pending.event.set()


def watched_folders(pipeline_view: PipelineView, root: Path) -> list[Path]:
    """The existing folders of patterns, in which something may change."""
    folders = {root / pattern.folder for pattern in pipeline_view.patterns}
    if not all(folder.is_dir() for folder in folders):
        root.mkdir(parents=True, exist_ok=True)
        return [root]
    return sorted(one for one in folders if not any(other != one and one.is_relative_to(other) for other in folders))


def _record_change(pipeline_view: PipelineView, pending: PendingChanges, path: str) -> None:
    """Record a changed path. A moved folder is one notification, whatever it contains."""
    states = pipeline_view.states
    if f"{path}/" in pipeline_view.folders or (isinstance(states, FileStates) and states.place(path).is_dir()):
        pending.notice.folders = True
    else:
        pending.notice.paths.add(path)


def _is_shown(_: Any, path: str) -> bool:
    return not path.rpartition("/")[2].startswith(".")
