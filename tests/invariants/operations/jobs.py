"""Cases for the operations on jobs, queues, workers, hosts and schedules."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.invariants.operations.case import Case, World
from tests.support.operate import cancel_jobs, set_control, set_paused
from tidemill.ops.admin import history, hosts
from tidemill.ops.jobs import batches, jobs, queues, schedules, workers
from tidemill.ops.operator.operation import Nothing
from tidemill.store.jobs.pages import JobFilter
from tidemill.store.jobs.schedules.schedules import declare_schedules
from tidemill.store.jobs.workers import WorkerCard, register_worker
from tidemill.store.telemetry.hosts import ProcessPlace, report


async def two_jobs(world: World) -> None:
    """Job 1 waits, job 2 was cancelled; job 3 is due in an hour."""
    for args in ({"order": 1}, {"order": 2}):
        await world.app.enqueue("send", args=args, tags=["case"])
    await world.app.enqueue("count", delay="1h")
    await cancel_jobs(world.database, [2], by="ann")


async def two_batches(world: World) -> None:
    """Batch 1 has two jobs that wait, batch 2 is open."""
    await world.app.batch([world.app.declarations.task("send").call(n) for n in (1, 2)], name="orders")
    await world.app.batch(keep_open=True)


async def a_worker(world: World) -> None:
    """Worker 1 lives on host alpha."""
    card = WorkerCard("alpha", 17, ("mail",), ("send",), 4, {"tidemill": "1"})
    await register_worker(world.database, card, lease_seconds=3600.0)


async def some_work(world: World) -> None:
    """Three attempts at task send in queue mail ended a moment ago, one of them with an error."""
    counts = {
        ("ended", ("mail", "send", "succeeded")): 2.0,
        ("ended", ("mail", "send", "retried")): 1.0,
        ("run", ("mail", "send", "0.1")): 3.0,
        ("run_sum", ("mail", "send")): 0.25,
        ("wait", ("mail", "0.5")): 3.0,
    }
    await report(world.database, ProcessPlace("alpha", 17, "worker"), {}, counts)


async def the_schedules(world: World) -> None:
    """The application's schedule is stored."""
    await declare_schedules(world.database, world.app.declarations.stored_schedules())


async def a_made_schedule(world: World) -> None:
    await the_schedules(world)
    await world.database.fetch(
        "INSERT INTO tidemill.schedule (name, task, queue, spec, job, next_fire, decided, made_by) "
        "SELECT 'own', task, queue, spec, job, next_fire, decided, 'ann' FROM tidemill.schedule WHERE name = 'yearly'"
    )


async def a_paused_schedule(world: World) -> None:
    await the_schedules(world)
    await set_paused(world.database, "yearly", True, by="ann")


async def a_paused_queue(world: World) -> None:
    await set_control(world.database, "*", "mail", "pause", by="ann")


CASES: dict[str, Case] = {
    "list_jobs": Case(
        jobs.ListJobs(state=("ready",), task="send"),
        two_jobs,
        (
            jobs.ListJobs(limit=0),
            jobs.ListJobs(limit=1000),
            jobs.ListJobs(state=("lost",)),
            jobs.ListJobs(cursor="?"),
            jobs.ListJobs(arg=("order",)),
        ),
        command="jobs --state ready --task send --json",
        items=True,
    ),
    "get_job": Case(
        jobs.GetJob(id=2),
        two_jobs,
        (jobs.GetJob(id=99), jobs.GetJob(id=-1)),
        command="job 2 --json",
    ),
    "get_job_log": Case(jobs.GetJob(id=1), two_jobs),
    "enqueue_job": Case(
        jobs.EnqueueJob(task="send", args={"order": 7}, priority=8, tags=["vip"]),
        wrong=(
            jobs.EnqueueJob(task="nothing"),
            jobs.EnqueueJob(task="send", args={"order": "x"}),
            jobs.EnqueueJob(task="send", args={"order": 1}, priority=99),
            jobs.EnqueueJob(task="send", args={"order": 1}, delay="soon"),
            jobs.EnqueueJob(task="send", args={"order": 1}, unique_key="a\x00b"),
        ),
        command="""enqueue APP send {"order":7} --priority 8 --tag vip --json""",
    ),
    "enqueue_copies": Case(
        jobs.EnqueueCopies(task="send", args={"order": 7}, count=3),
        wrong=(jobs.EnqueueCopies(task="send", args={"order": 7}, count=0),),
        command="""enqueue APP send {"order":7} --count 3 --json""",
        items=True,
    ),
    "preview_cancel_jobs": Case(JobFilter(queue="mail"), two_jobs, (JobFilter(state=("lost",)),)),
    "cancel_jobs": Case(
        jobs.JobSelection(ids=[1, 2]),
        two_jobs,
        (
            jobs.JobSelection(),
            jobs.JobSelection(ids=[]),
            jobs.JobSelection(ids=[1, 99]),
            jobs.JobSelection(ids=[1], filter=JobFilter()),
            jobs.JobSelection(filter=JobFilter(state=("lost",))),
        ),
        command="cancel 1 2",
    ),
    "preview_retry_jobs": Case(JobFilter(state=("cancelled",)), two_jobs, (JobFilter(state=("lost",)),)),
    "retry_jobs": Case(
        jobs.RetryJobs(filter=JobFilter(state=("cancelled",), up_to=2)),
        two_jobs,
        (jobs.RetryJobs(), jobs.RetryJobs(ids=[99]), jobs.RetryJobs(ids=[99], args={"order": 1})),
        command="retry --state cancelled --yes",
    ),
    "list_batches": Case(
        batches.ListBatches(state="running"),
        two_batches,
        (batches.ListBatches(state="lost"), batches.ListBatches(cursor="?")),
        command="batch --state running --json",
        items=True,
    ),
    "get_batch": Case(
        batches.BatchNumber(id=1), two_batches, (batches.BatchNumber(id=99),), command="batch show b1 --json"
    ),
    "enqueue_batch": Case(
        batches.EnqueueBatch(task="send", each=[{"order": 1}, {"order": 2}], name="orders"),
        wrong=(
            batches.EnqueueBatch(task="nothing", each=[]),
            batches.EnqueueBatch(task="send", each=[{"order": "x"}]),
            batches.EnqueueBatch(task="send", each=[], on_success="send"),
        ),
    ),
    "close_batch": Case(
        batches.BatchNumber(id=2), two_batches, (batches.BatchNumber(id=99),), command="batch close b2 --json"
    ),
    "cancel_batch": Case(
        batches.BatchNumber(id=1), two_batches, (batches.BatchNumber(id=99),), command="batch cancel b1 --json"
    ),
    "list_queues": Case(
        queues.ListQueues(ended_within=3600.0),
        two_jobs,
        (queues.ListQueues(ended_within=-1.0),),
        command="queues --json",
        items=True,
    ),
    "limit_queue": Case(
        queues.LimitQueue(name="mail", rate="30/m"),
        two_jobs,
        wrong=(
            queues.LimitQueue(name="mail", rate="fast"),
            queues.LimitQueue(name="mail", rate="1/s", burst=0.1),
            queues.LimitQueue(name="mail", rate="1/s", burst=0.1, per_key=True),
            queues.LimitQueue(name=" ", rate=None),
            queues.LimitQueue(name="mial", rate="1/s"),
        ),
        command="queues limit mail 30/m",
    ),
    "weigh_key": Case(
        queues.WeighKey(name="mail", fair_key="acme", weight=3),
        two_jobs,
        wrong=(
            queues.WeighKey(name="mail", fair_key="acme", weight=0),
            queues.WeighKey(name=" ", fair_key="acme", weight=3),
            queues.WeighKey(name="mial", fair_key="acme", weight=3),
        ),
        command="queues weight mail acme 3",
    ),
    "pause_queue": Case(
        queues.QueueRef(name="mail"), two_jobs, wrong=(queues.QueueRef(name=" "), queues.QueueRef(name="mial"))
    ),
    "resume_queue": Case(queues.QueueRef(name="mail"), a_paused_queue, wrong=(queues.QueueRef(name="mial"),)),
    "list_workers": Case(
        workers.ListWorkers(), a_worker, (workers.ListWorkers(ended_within=-1.0),), command="workers --json", items=True
    ),
    "get_worker": Case(
        workers.WorkerNumber(id=1), a_worker, (workers.WorkerNumber(id=404),), command="workers show 1 --json"
    ),
    "control_workers": Case(
        workers.ControlWorkers(mode="drain", host="alpha", queue="mail"),
        a_worker,
        (
            workers.ControlWorkers(mode="explode"),  # pyright: ignore[reportArgumentType] - it is wrong
            workers.ControlWorkers(mode="pause", host=""),
            workers.ControlWorkers(mode="pause", queue=" "),
        ),
        command="workers drain alpha mail",
    ),
    "list_hosts": Case(hosts.ListHosts(), wrong=(hosts.ListHosts(within=0.0),)),
    "get_host_samples": Case(hosts.GetHostSamples(name="alpha"), wrong=(hosts.GetHostSamples(name="a", every=0.0),)),
    "list_history": Case(
        history.ListHistory(kind="task"),
        some_work,
        (history.ListHistory(kind="task", within="soon"), history.ListHistory(kind="task", within="60d")),
        command="history task --json",
        items=True,
    ),
    "get_history": Case(
        history.GetHistory(kind="queue", name="mail", within="6h"),
        some_work,
        (history.GetHistory(kind="queue", name="mail", within="-1d"),),
        command="history queue mail --within 6h --json",
        items=True,
    ),
    "list_schedules": Case(Nothing(), the_schedules, command="schedules --json", items=True),
    "run_schedule": Case(
        schedules.ScheduleRef(name="yearly"),
        the_schedules,
        (schedules.ScheduleRef(name="nothing"),),
        command="schedules run yearly",
    ),
    "put_schedule": Case(
        schedules.PutSchedule(name="hourly", start="order", args={"order": 5}, every="1h", overlap="skip"),
        the_schedules,
        (
            schedules.PutSchedule(name="yearly", start="order", args={"order": 5}, every="1h"),
            schedules.PutSchedule(name="hourly", start="nothing", every="1h"),
            schedules.PutSchedule(name="hourly", start="order", args={"order": 5}),
            schedules.PutSchedule(name="hourly", start="order", args={"order": 5}, cron="often"),
        ),
        command="""schedules put hourly order {"order":5} --every 1h --overlap skip --app=APP""",
    ),
    "delete_schedule": Case(
        schedules.ScheduleRef(name="own"),
        a_made_schedule,
        (schedules.ScheduleRef(name="nothing"), schedules.ScheduleRef(name="yearly")),
        command="schedules delete own",
    ),
    "explain_schedule": Case(
        schedules.ScheduleRef(name="yearly"),
        the_schedules,
        (schedules.ScheduleRef(name="nothing"),),
        command="schedules explain yearly --json",
    ),
    "backfill_schedule": Case(
        schedules.BackfillSchedule(
            name="yearly", since=datetime(2020, 1, 1, tzinfo=UTC), until=datetime(2023, 6, 1, tzinfo=UTC)
        ),
        the_schedules,
        (
            schedules.BackfillSchedule(name="nothing", since=datetime(2020, 1, 1, tzinfo=UTC)),
            schedules.BackfillSchedule(
                name="yearly", since=datetime(2020, 1, 1, tzinfo=UTC), until=datetime(2019, 1, 1, tzinfo=UTC)
            ),
        ),
        command="schedules backfill yearly --since 2020-01-01T00:00:00+00:00 --until 2023-06-01T00:00:00+00:00",
    ),
    "pause_schedule": Case(
        schedules.ScheduleRef(name="yearly"),
        the_schedules,
        (schedules.ScheduleRef(name="nothing"),),
        command="schedules pause yearly",
    ),
    "resume_schedule": Case(
        schedules.ScheduleRef(name="yearly"),
        a_paused_schedule,
        (schedules.ScheduleRef(name="nothing"),),
        command="schedules resume yearly",
    ),
}
