"""Changes that an operator makes to stored jobs, schedules, workers and tokens, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from tidemill.core.jobs.job import JobRef
from tidemill.store.access import audit, tokens
from tidemill.store.database import Database
from tidemill.store.jobs import operate, workers
from tidemill.store.jobs.operate import Outcome
from tidemill.store.jobs.schedules import schedules
from tidemill.store.jobs.workers import Mode
from tidemill.store.maintenance import retention_settings
from tidemill.store.maintenance.retention_settings import Retention
from tidemill.store.states import requests
from tidemill.store.transaction import transaction


async def acting(database: Database, by: str, act: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
    """What a function of the store does in a transaction in the name of `by`."""
    async with transaction(database, by=by) as tx:
        return await act(tx, *args, **more)


async def cancel_jobs(database: Database, ids: list[int], *, by: str) -> Outcome:
    return await acting(database, by, operate.cancel_jobs, ids)


async def retry_jobs(database: Database, ids: list[int], *, by: str) -> Outcome:
    return await acting(database, by, operate.retry_jobs, ids)


async def set_control(database: Database, host: str, queue: str, mode: Mode, *, by: str) -> str:
    return await acting(database, by, workers.set_control, host, queue, mode)


async def set_paused(database: Database, name: str, paused: bool, *, by: str) -> None:
    await acting(database, by, schedules.set_paused, name, paused)


async def run_now(database: Database, name: str, *, by: str) -> JobRef:
    _, id = await acting(database, by, schedules.run_now, name)
    return JobRef(id)


async def create_token(database: Database, name: str, role: str, *, by: str, **more: Any) -> tuple[str, asyncpg.Record]:
    return await acting(database, by, tokens.create_token, name, role, **more)


async def revoke_token(database: Database, token_id: int, *, by: str) -> str:
    return await acting(database, by, tokens.revoke_token, token_id)


async def set_retention(database: Database, wanted: Retention, *, by: str) -> None:
    await acting(database, by, retention_settings.set_retention, wanted)


async def list_audit(database: Database, *, limit: int = 50) -> list[asyncpg.Record]:
    """The newest entries of the audit trail."""
    return await audit.page_audit(database, who=None, action=None, before=None, limit=limit)


async def invalidate_states(database: Database, pipeline: str, stage: str, entities: list[str], *, by: str) -> int:
    return await acting(database, by, requests.invalidate_states, pipeline, stage, entities)


async def retry_failures(database: Database, pipeline: str, stage: str, entities: list[str], *, by: str) -> int:
    return await acting(database, by, requests.retry_failures, pipeline, stage, entities)


async def accept_code(database: Database, pipeline: str, stage: str, code: str, *, by: str) -> int:
    return await acting(database, by, requests.accept_code, pipeline, stage, code)


async def set_approved(database: Database, pipeline: str, stage: str, code: str, *, by: str, seconds: float) -> None:
    await acting(database, by, requests.set_approved, pipeline, stage, code, seconds=seconds)


async def pause_pipeline(database: Database, pipeline: str, stage: str, *, paused: bool, by: str) -> None:
    await acting(database, by, requests.set_paused, pipeline, stage, paused=paused)
