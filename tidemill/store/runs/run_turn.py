"""What one run writes in one turn of its owner."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tidemill.core.codec import encode
from tidemill.core.jobs.job import NewJob
from tidemill.store.runs.log import NewStepLog

#: A moment for the database, of seconds since 1970; one beyond the last date that Python knows is that date.
MOMENT = "to_timestamp(CASE WHEN {0} > 253402300799 THEN 253402300799 ELSE {0} END)"


class JobKeys(NamedTuple):
    """The keys by which a job shares a limit or a queue with others."""

    concurrency_key: str | None
    max_concurrency: int
    lane: str | None
    rate_key: str | None
    key_rate: float | None
    key_burst: float | None


class JobChain(msgspec.Struct, gc=False):
    """The jobs that follow a job for certain, one after the other, if it succeeds; each with its piece of work.

    A job with a larger result than `result_limit` bytes leaves the decision to its run."""

    jobs: list[tuple[int, JobRow]]
    result_limit: int


class JobRow(NamedTuple):
    """A job of a run as it is stored."""

    queue: str
    task: str
    args: bytes
    priority: int
    at: float | None
    delay: float
    deadline: float | None
    options: bytes | None
    origin: bytes | None
    tags: bytes | None
    chain: JobChain | None
    keys: JobKeys | None


def with_job_trace(job: JobRow, trace: str) -> JobRow:
    """A stored job with the trace that it continues in its options."""
    options = b'{"trace":"%s"' % trace.encode()
    given = bytes(job.options or b"{}")
    return job._replace(options=options + (b"," + given[1:] if given != b"{}" else b"}"))


class NewRun(msgspec.Struct, gc=False):
    """A run that its owner has started; it is stored with its first turn."""

    kind: str
    workflow: str
    version: str
    input: bytes
    origin: bytes | None = None
    key: str | None = None
    delay: float | None = None
    """Not before this many seconds from now on."""
    at: float | None = None
    """Not before this moment."""
    tags: list[str] | None = None
    priority: int | None = None
    """0 to 9: of the runs that wait for an owner, 9 goes first; its jobs have it too, unless they have their own."""
    deadline: float | None = None
    """It expires if it has not begun at this moment."""
    deadline_in: float | None = None
    """The same, this many seconds from now on."""
    rate_key: str | None = None
    """Runs that share it begin at most at its rate."""
    key_rate: float | None = None
    key_burst: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it may begin at once, in the process that starts it."""
        later = self.delay, self.at, self.deadline, self.deadline_in
        named = self.key, self.tags, self.priority, self.rate_key
        return named == (None, None, None, None) and later == (None, None, None, None)


class BufferedEvents(msgspec.Struct, frozen=True):
    """The events that a run has kept because no step and no wait has taken them yet: how many of each class.

    `dropped` is how many were dropped because there were too many."""

    events: dict[str, int] = {}
    dropped: int = 0


class RunTurn(msgspec.Struct, gc=False):
    """What one run writes in one turn. `before` is the last tick that it knows to be stored."""

    run_id: int
    before: int
    last: int
    ticks: list[bytes] = []
    shown: list[tuple[int, bytes]] = []
    """What the run publishes, each with the last tick before it."""
    used: list[int] = []
    postponed: list[int] = []
    """Inbox rows that this version of the workflow cannot read; another one may."""
    timers: dict[str, float | None] = {}
    jobs: list[tuple[int, JobRow]] = []
    stops: list[int] = []
    keeps_decisions: bool = False
    """Whether its jobs no longer store those that follow them."""
    asks: list[tuple[str, str, bytes | None, float | None]] = []
    """Nodes that wait for a person's input: the prompt, the schema of the answer, the deadline."""
    answered: list[str] = []
    """Nodes that no longer wait for input."""
    logs: list[NewStepLog] = []
    new: NewRun | None = None
    reaches_out: bool = True
    """Whether the run may have jobs or questions to people, which end with it."""
    state: str | None = None
    result: bytes | None = None
    error: bytes | None = None
    note: str | None = None
    """What holds the run up; empty if nothing does any more. The end of a run replaces it."""
    buffered: bytes | None = None
    """The events in the run's mailbox, if they have changed."""
    version: str | None = None
    """The version of the workflow that drives the run from now on, if it is another one."""
    renamed: list[tuple[str, str]] = []
    """Nodes that wait for a person's input under another name now."""
    snapshot: bytes | None = None
    trim: bool = False
    """Whether the ticks before the snapshot are dropped, and all but the last published events."""
    trim_logs: bool = False
    """Whether the log lines of all but its last steps are dropped, too."""
    within: Any = None
    """A connection with an open transaction that commits with this turn."""
    refused: Exception | None = None
    """Why that transaction was not committed."""
    release: bool = False
    awake: bool = False
    """Whether a released run has work to do, whatever is in its inbox."""
    cleared: bool = False
    """Whether the steps of a suspect that may have ended its process have ended by themselves."""

    @property
    def is_more_than_ticks(self) -> bool:
        """Whether the turn changes anything except the journal and the run's own row."""
        inbox, asked = self.used or self.postponed or self.timers, self.asks or self.answered or self.renamed
        return bool(inbox or asked or self.jobs or self.stops or self.keeps_decisions)

    @property
    def changes_head(self) -> bool:
        """Whether the turn changes more than the number of ticks in the run's row."""
        is_same = self.state is None and self.note is None and self.buffered is None and self.version is None
        return not is_same or self.release or self.cleared

    @property
    def is_only_ticks(self) -> bool:
        """Whether the turn only adds ticks to a run that is stored already."""
        more = self.new or self.shown or self.snapshot or self.changes_head or self.is_more_than_ticks
        return not more


def job_row(job: NewJob) -> JobRow:
    """A job as a row of a turn."""
    return JobRow(
        job.queue,
        job.task,
        bytes(job.args),
        job.priority,
        job.at,
        job.delay,
        job.deadline,
        None if job.options is None else encode(job.options),
        None if job.origin is None else encode(job.origin),
        None if job.tags is None else encode(job.tags),
        None,
        keys_of(job),
    )


def successor_json(chain: JobChain, owner: int) -> bytes | None:
    """The first job of a chain as it is stored with the job before it, the second one inside of it, and so on.

    A job is followed by them only while `owner` has the run."""
    following: bytes | None = None
    for work, job in reversed(chain.jobs):
        raw = {"options": job.options, "origin": job.origin, "tags": job.tags, "successor": following}
        following = encode(
            {
                "by": owner,
                "limit": chain.result_limit,
                "work": work,
                "queue": job.queue,
                "task": job.task,
                "priority": job.priority,
                "args": msgspec.Raw(job.args),
                **{name: msgspec.Raw(value) for name, value in raw.items() if value is not None},
            }
        )
    return following


def keys_of(job: NewJob) -> JobKeys | None:
    """The keys of a job; None if it has none."""
    if job.is_plain:
        return None
    return JobKeys(job.concurrency_key, job.max_concurrency, job.lane, job.rate_key, job.key_rate, job.key_burst)
