"""The data of a batch: jobs that are enqueued, followed and cancelled as one."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tidemill.core.jobs.job import Callback, Origin

#: What a task for the end of a batch may take: the batch's id, how many jobs it had, and how many of them ended how.
BATCH_FACTS = ("batch", "total", "succeeded", "failed", "cancelled", "expired")


class NewBatch(msgspec.Struct, frozen=True):
    """A batch to be stored. With a `key` there is no second one; `run` and `work` wait for its end."""

    origin: Origin
    name: str | None = None
    is_open: bool = False
    on_success: Callback | None = None
    on_complete: Callback | None = None
    key: str | None = None
    run: int | None = None
    work: int | None = None


class BatchRef(msgspec.Struct, frozen=True):
    """A stored batch. `created` is False if another batch has its key; `id` is then that batch."""

    id: int
    created: bool = True


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as of the time when it was read: how many of its jobs ended how.

    Its state is `running`, `succeeded` (all jobs have), `cancelled`, or `failed`: some jobs failed, were cancelled or
    expired. A batch that `is_open` accepts more jobs and does not end before it is closed.
    """

    id: int
    name: str | None
    state: str
    is_open: bool
    total: int
    unfinished: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int
    created_at: datetime
    ended_at: datetime | None
    cancel_reason: str | None

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def progress(self) -> float:
        """The share of its jobs that have ended, from 0 to 1."""
        return 1.0 - self.unfinished / self.total if self.total else float(self.ended)
