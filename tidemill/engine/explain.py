"""Explains a job or a run in sentences: why it exists, why it waits, how it ended. Pure functions of one row."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tidemill.core.codec import decode
from tidemill.core.duration import format_duration
from tidemill.core.jobs.job import LANE_SEPARATOR

Job = Mapping[str, Any]

MOST_HOLDERS = 5

_NO_RUN_WORKER = "It waits for a run worker: start one with `tidemill up app.py` or `tidemill worker app.py`."


def explain_job(job: Job) -> list[str]:
    """Everything that explains a job in its current state, origin first. JSON columns are expected as Python values."""
    explain = {
        "ready": explain_ready,
        "throttled": explain_throttled,
        "no_worker": explain_no_worker,
        "running": explain_running,
    }.get(job["state"], explain_end)
    batch = [] if job.get("batch_id") is None else [f"It is one of the jobs of batch b{job['batch_id']}."]
    return [explain_origin(job), *batch, *explain(job)]


def explain_run(row: Mapping[str, Any], holders: Sequence[int], rate: Mapping[str, Any] | None) -> str:
    """The state of a flow's run in a sentence: `holders` are the runs with the slots that it may wait for."""
    if row["state"] not in ("running", "needs_attention"):
        return explain_run_end(row)
    if row["state"] == "needs_attention":
        return str(row["note"])
    if row["owner"] is not None:
        return f"It is driven by {row['owner_host']} (pid {row['owner_pid']})."
    if holders:
        runs = "1 run" if len(holders) == 1 else f"{len(holders)} runs"
        return (
            f"It waits for a slot: no more than {runs} of {row['workflow']} may run at once (num_concurrent_runs), "
            f"which {'is' if len(holders) == 1 else 'are'} {_listed_runs(holders)} now."
        )
    if row["start_at"] is not None:
        return explain_start(row["start_at"]) if rate is None else explain_run_rate(row, rate)
    if row["awake"]:
        return _NO_RUN_WORKER
    return "It waits for an event or a timer."


def explain_run_start(origin: Mapping[str, Any] | None) -> list[str]:
    """Who started a run, or which schedule."""
    return [] if not origin else [explain_origin({"origin": origin}).replace("Enqueued", "Started", 1)]


def explain_run_end(row: Mapping[str, Any]) -> str:
    """How a run has ended."""
    if row["note"]:
        return str(row["note"])
    ended = {"succeeded": "It succeeded", "failed": "It failed", "cancelled": "It was cancelled"}
    took = format_duration((row["ended_at"] - row["created_at"]).total_seconds())
    return f"{ended.get(row['state'], 'It has ended: ' + row['state'])} after {took}."


def explain_input(row: Mapping[str, Any]) -> str:
    """What a run of a flow asks, and how it is answered."""
    asked = f" to {row['prompt']!r}" if row["prompt"] else ""
    return f"It waits for an answer{asked}: {answer_command(row['run_id'], row['node'], row['schema'])} --app app.py"


def answer_command(run: int, node: str, schema: Any) -> str:
    """The command that answers a question, with the fields of the answer as far as the schema describes them."""
    fields = schema.get("properties") if isinstance(schema, Mapping) else None
    example = "{" + ", ".join(f'"{field}": ...' for field in fields) + "}" if fields else "JSON"
    return f"tidemill submit r{run} {node} '{example}'"


def explain_start(start_at: datetime) -> str:
    """When a run begins that was started with a delay."""
    return f"It begins at {start_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC."


def explain_run_rate(row: Mapping[str, Any], rate: Mapping[str, Any]) -> str:
    """What a run waits for that waits for its rate."""
    limit = f"Runs with rate key {row['rate_key']} begin no more than {_rate(rate['rate'], 'run')}"
    wait = max(0.0, rate["wait"]) + rate["ahead"] / rate["rate"]
    behind = f"{_count(rate['ahead'], 'run')} of the key before it; " if rate["ahead"] else ""
    sentences = f"It waits for its rate. {limit}; {behind}it can begin in {format_duration(wait)}."
    return sentences if rate["is_served"] else f"{_NO_RUN_WORKER} {limit}."


def _listed_runs(numbers: Sequence[int]) -> str:
    shown, more = ", ".join(f"r{number}" for number in numbers[:5]), len(numbers) - 5
    return f"{shown} and {more} more" if more > 0 else shown


def explain_buffered(buffered: Mapping[str, Any] | None) -> list[str]:
    """What is in the mailbox of a run, and what was dropped from it."""
    if not buffered:
        return []
    sentences: list[str] = []
    if kept := buffered["events"]:
        names = ", ".join(f"{count} {name.rpartition('.')[2]}" for name, count in kept.items())
        sentences.append(f"Buffered, until a step waits for them: {names}.")
    if buffered["dropped"]:
        sentences.append(f"{_count(buffered['dropped'], 'event')} had to be dropped, because too many were buffered.")
    return sentences


def explain_origin(job: Job) -> str:
    """Who enqueued the job, and why."""
    origin = job.get("origin")
    if job.get("run_id") is not None and (not origin or origin.get("schedule")):
        started = f", which schedule {origin['schedule']} has started" if origin else ""
        return f"Enqueued by run r{job['run_id']}{started}: `tidemill run r{job['run_id']}` shows it."
    if not origin:
        return "Its origin is not recorded."
    by = origin["by"]
    if origin.get("batch"):
        return f"Enqueued when batch b{origin['batch']} had ended."
    if origin.get("retry_of"):
        return f"Enqueued by {by}, to repeat job {origin['retry_of']}."
    if origin.get("schedule"):
        return _explain_fire(by, origin)
    if origin.get("request"):
        return f"Enqueued by {by}, in request {origin['request']}."
    place = f" on {origin['host']} (pid {origin['pid']})" if origin.get("host") and "@" not in by else ""
    return f"Enqueued by {by}{place}."


def _explain_fire(by: str, origin: Mapping[str, Any]) -> str:
    """The fire of a schedule that a job comes from."""
    reason, schedule = origin.get("reason"), origin["schedule"]
    if reason == "run now" or not origin.get("fire"):
        return f"Enqueued by {by}, who ran schedule {schedule} by hand."
    fire = f"{datetime.fromtimestamp(origin['fire'], UTC):%Y-%m-%d %H:%M:%S} UTC"
    if reason == "backfill":
        return f"Enqueued by {by}, who had schedule {schedule} started for {fire}."
    late = ", which was missed" if reason == "catch-up" else ""
    return f"Enqueued by schedule {schedule}, for {fire}{late}."


def explain_batch(batch: Mapping[str, Any]) -> list[str]:
    """What a batch waits for, or how it ended, origin first."""
    sentences = [explain_origin(batch)]
    ends = [(batch[state], state) for state in ("succeeded", "failed", "cancelled", "expired") if batch[state]]
    counts = ", ".join(f"{count:,} {state}" for count, state in ends)
    if batch["unfinished"]:
        left = f"{batch['unfinished']:,} of {_count(batch['total'], 'job')} unfinished"
        sentences.append(f"{left}; {counts}." if counts else f"{left}.")
    elif batch["total"]:
        sentences.append(f"Of {_count(batch['total'], 'job')}, {counts}.")
    if batch["missing"]:
        sentences.append(
            f"How {_count(batch['missing'], 'job')} ended is not known: a worker of an older version ran them. "
            "They count as failed."
        )
    if batch["is_open"]:
        sentences.append(f"It is open for more jobs: `tidemill batch close {batch['id']}` lets it end.")
    if batch["cancel_reason"]:
        sentences.append(f"{batch['cancel_reason'][0].upper()}{batch['cancel_reason'][1:]}.")
    if batch["ended_at"] is None:
        sentences += [f"When all have succeeded, {batch['on_success']} is enqueued."] if batch["on_success"] else []
        sentences += [f"When all have ended, {batch['on_complete']} is enqueued."] if batch["on_complete"] else []
    elif batch["failed"]:
        sentences.append(f"`tidemill retry --batch {batch['id']}` runs its failed jobs again, in their place.")
    return sentences


def explain_ready(job: Job) -> list[str]:
    """What a ready job waits for."""
    sentences = _notes_of(job)
    if job["due_in"] > 0:
        sentences.append(f"Scheduled for later: it is due in {format_duration(job['due_in'])}.")
    else:
        ahead = job["ahead"] or 0
        lane = job.get("fair_key") or ""
        fair_key, rate_key = lane.partition(LANE_SEPARATOR)[0], job.get("rate_key")
        keys = [f"{kind} key {key}" for kind, key in (("fair", fair_key), ("rate", rate_key)) if key]
        shared = f" with {' and '.join(keys)}" if keys else ""
        sentences.append(
            f"Waits behind {_count(ahead, 'job')}{shared} of queue {job['queue']}."
            if ahead
            else f"It is next{shared} in queue {job['queue']}."
        )
        if keys:
            sentences.append(f"Jobs with other {'fair' if fair_key else 'rate'} keys take turns with it.")
    hindered = [*explain_workers(job), *explain_control(job)]
    if job["rate"] is not None:
        hindered.append(f"Queue {job['queue']} starts no more than {_rate(job['rate'])}.")
    hindered += explain_rate(job)
    if not hindered and job["due_in"] <= 0 and not job["ahead"]:
        hindered.append(_explain_claim(job["knowing"], job.get("knowing_and_full", 0)))
    return [*sentences, *hindered, *explain_deadline(job)]


def _explain_claim(workers: int, full: int) -> str:
    """Whether a worker that can run the job has room for it."""
    if full < workers:
        return f"{_count(workers, 'worker')} can claim it."
    if workers == 1:
        return "The worker that can claim it runs as many jobs as it may."
    return f"All {workers} workers that can claim it run as many jobs as they may."


def explain_rate(job: Job) -> list[str]:
    """Whether a job waits for its rate key."""
    if (key := job.get("rate_key")) is None:
        return []
    if job["most_a_second"] is None:
        return [f"Its rate key {key} has no rate: declare `rate=` of task {job['task']}, or `key_rate=` of its queue."]
    limit = f"Jobs with rate key {key} start no more than {_rate(job['most_a_second'])}"
    wait = job["rate_wait"] or 0.0
    if job["due_in"] > 0 or wait <= 0:
        return [f"{limit}."]
    return [f"Waits for its rate. {limit}; the next one can start in {format_duration(wait)}."]


def explain_throttled(job: Job) -> list[str]:
    """Why a job with a concurrency key is throttled."""
    most = job["slots"]
    limit = f": no more than {most} of its jobs may run at once" if most else ""
    if limit and (holders := job.get("holders")):
        others = " and others" if len(holders) > MOST_HOLDERS else ""
        limit += f", now {'job' if len(holders) == 1 else 'jobs'} {', '.join(holders[:MOST_HOLDERS])}{others}"
    slot = f"a slot of concurrency key {job['concurrency_key']}{limit}."
    if job["due_in"] > 0:  # A delay or a retry's backoff holds it back, and not the key.
        noted = [] if (job["note"] or "").startswith("waits for a slot") else _notes_of(job)
        sentences = [
            *noted,
            f"Scheduled for later: it is due in {format_duration(job['due_in'])}.",
            f"Then it needs {slot}",
        ]
    else:
        sentences = [f"Waits for {slot}"]
    return [*sentences, *explain_workers(job), *explain_control(job), *explain_deadline(job)]


def explain_no_worker(job: Job) -> list[str]:
    """Why no worker can run the job."""
    return [*_notes_of(job), *explain_workers(job), *explain_deadline(job)]


def explain_workers(job: Job) -> list[str]:
    """Whether a worker can run the job."""
    queue, task = job["queue"], job["task"]
    if not job["serving"]:
        return [f"No worker serves queue {queue}: start one with `tidemill worker APP --queue {shlex.quote(queue)}`."]
    if not job["knowing"]:
        who = "The only worker" if job["serving"] == 1 else f"None of the {job['serving']} workers"
        verb = "cannot" if job["serving"] == 1 else "can"
        how = "start one whose application declares it, on a machine that has what it needs"
        return [f"{who} of queue {queue} {verb} run task {task}: {how}."]
    return []


def explain_control(job: Job) -> list[str]:
    """Which operator has paused or stopped the job's queue."""
    sentences: list[str] = []
    for held in map(decode, job["held"] or ()):
        place = "every host" if held["host"] == "*" else held["host"]
        given = f"{shlex.quote(held['host'])} {shlex.quote(held['queue'])}"
        sentences.append(
            f"An operator has paused queue {job['queue']}: {held['mode']} by {held['by']} on {place}. "
            f"Resume: `tidemill workers resume {given}`."
        )
    return sentences


def explain_deadline(job: Job) -> list[str]:
    if job["deadline"] is None:
        return []
    return [f"It expires if it has not started by {job['deadline'].astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC."]


def explain_running(job: Job) -> list[str]:
    """Where a job runs, and its progress."""
    where = f"{job['worker_host']} (pid {job['worker_pid']})" if job["worker_host"] else f"worker {job['worker_id']}"
    sentences = [f"Running for {format_duration(job['running_for'])} on {where}: attempt {job['attempt']}."]
    if job["progress"] is not None:
        sentences.append(f"It is {job['progress']:.0%} done.")
    sentences += _notes_of(job)
    if job["cancel_reason"]:
        sentences.append(f"It has been asked to stop: {job['cancel_reason']}.")
    return sentences


def explain_end(job: Job) -> list[str]:
    """How a job ended."""
    if job["started_at"] is None or job["attempt"] == 0:
        return [f"{job['state'].capitalize()} without having run.", *_notes_of(job)]
    took = format_duration((job["finished_at"] - job["started_at"]).total_seconds())
    where = f" on {job['worker_host']} (pid {job['worker_pid']})" if job["worker_host"] else ""
    sentences = [f"{job['state'].capitalize()} at attempt {job['attempt']}{where}, after {took}."]
    if job["losses"]:
        sentences.append(f"Its worker was lost {_count(job['losses'], 'time')}.")
    return [*sentences, *_notes_of(job)]


def _notes_of(job: Job) -> list[str]:
    """The note that was stored with the last decision."""
    note = (job["note"] or "").strip()
    if not note:
        return []
    return [f"{note[0].upper()}{note[1:]}{'' if note.endswith(('.', '!', '?')) else '.'}"]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _rate(per_second: float, what: str = "job") -> str:
    if per_second >= 1:
        return f"{per_second:g} {what}{'' if per_second == 1 else 's'} a second"
    return f"one {what} every {format_duration(1 / per_second)}"
