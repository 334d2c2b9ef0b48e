"""Our side of the `jobs` suite: the four figures, each taken on an empty database of its own.

Measure as `peers/contest.py` does for everybody else: the worker is a process of its own, its start is not
counted, the job does nothing, its arguments are `{"n": int}`.
"""


def drain(dsn: str, jobs: int) -> float:
    """Jobs/s of one worker process on a backlog enqueued beforehand, first claim to last finish."""
    raise NotImplementedError("ours is not plugged in yet: run with --peers-only")


def enqueue_many(dsn: str, jobs: int) -> float:
    """Jobs/s of the best bulk call, `jobs` in all, in calls of `contest.BULK`."""
    raise NotImplementedError("ours is not plugged in yet: run with --peers-only")


def enqueue_one(dsn: str, seconds: float, concurrency: int) -> float:
    """Calls/s for `seconds`, from `concurrency` tasks that each enqueue one job at a time."""
    raise NotImplementedError("ours is not plugged in yet: run with --peers-only")


def start_latency(dsn: str, n: int) -> list[float]:
    """Milliseconds from just before the enqueue call to the first line of the job, `n` times, idle queue."""
    raise NotImplementedError("ours is not plugged in yet: run with --peers-only")
