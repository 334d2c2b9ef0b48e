"""What becomes of code that misbehaves, for every place and every misbehaviour: the contract of `docs/containment.md`.

A cell is a part of what is stored about the piece of work. `IMPOSSIBLE` says why a cell cannot exist.
"""

from __future__ import annotations

JOBS = ("job_async", "job_plain", "job_isolated")
STEPS = ("step_async", "step_plain", "step_queue")
STREAMS = ("stream_async", "stream_plain", "stream_batch")
DECODER = ("stream_decoder",)
STAGES = ("stage_plain", "stage_loop", "stage_worker")
MONITORS = ("monitor_entity", "monitor_fold", "monitor_trigger")
CHANNEL, SOURCE, MODEL = "monitor_channel", "monitor_source", "model_load"
LIFESPAN = "lifespan"
"""It has an application of its own: what opens no lifespan takes no work."""

#: Each place, and what it is called in the guide.
PLACES = {
    "job_async": "async job",
    "job_plain": "plain job",
    "job_isolated": "isolated job",
    "step_async": "async step",
    "step_plain": "plain step",
    "step_queue": "step on a queue",
    "dag_node": "node of a dag",
    "stream_async": "async task of a stream",
    "stream_plain": "plain task of a stream",
    "stream_batch": "micro-batch of a stream",
    "stream_decoder": "decoder of a stream",
    "stage_plain": "plain stage in process",
    "stage_loop": "async stage in process",
    "stage_worker": "async stage on workers",
    "monitor_entity": "`entity=` of a monitor",
    "monitor_fold": "fold of a monitor",
    "monitor_trigger": "trigger of a monitor",
    CHANNEL: "channel of a monitor",
    SOURCE: "source of a monitor",
    MODEL: "load of a model",
    LIFESPAN: "lifespan of an application",
}

IN_ONE_APPLICATION = [place for place in PLACES if place != LIFESPAN]

#: The misbehaviours that run together in one application.
GROUPS = {
    "errors": ("raises", "background", "leaks"),
    "verdict": ("verdict",),  # apart: a monitor stores the last problem of `entity=` only
    "sizes": ("unencodable", "output", "result", "memory"),
    "exit": ("exit",),
    "task_exits": ("task_exits",),
    "segfault": ("segfault",),
    "gil": ("gil",),
    "blocks": ("blocks", "late"),
    "hangs": ("hangs", "swallows"),
}

#: Each misbehaviour, and what it is called in the guide.
MISBEHAVIOURS = {
    "raises": "raises",
    "verdict": "raises what is no `Exception`",
    "unencodable": "raises what cannot be encoded",
    "background": "leaves a background task",
    "leaks": "leaks threads and descriptors",
    "output": "prints 20 MB",
    "result": "returns 50 MB",
    "memory": "takes more memory than its limit",
    "exit": "`os._exit`",
    "task_exits": "`sys.exit` in a task of its own",
    "segfault": "segfault",
    "gil": "holds the interpreter",
    "blocks": "never yields",
    "hangs": "hangs",
    "late": "blocks for five times its limit, then returns",
    "swallows": "swallows the cancellation",
}

_PLAIN = ("job_plain", "job_isolated", "step_plain", "stream_plain", "stage_plain")

IMPOSSIBLE: dict[tuple[str, str], str] = {
    **{(place, "memory"): "only a process of its own can have a limit of its own" for place in PLACES},
    **{
        (place, "result"): "its result is not stored"
        for place in (*STREAMS, *DECODER, *MONITORS, CHANNEL, SOURCE, MODEL, LIFESPAN)
    },
    **{
        (place, "swallows"): "a plain function is not cancelled"
        for place in (*_PLAIN, *DECODER, *MONITORS, CHANNEL, MODEL)
    },
    **{
        (SOURCE, how): "a source may wait for as long as it has no events; only its own monitor waits with it"
        for how in ("hangs", "swallows")
    },
    **{(place, "hangs"): "it runs on the event loop, which it blocks" for place in (*DECODER, *MONITORS)},
}
for _place in (*_PLAIN, *DECODER, *MONITORS, CHANNEL, MODEL):
    IMPOSSIBLE[_place, "task_exits"] = "a plain function has no tasks"
for _place in ("step_queue", "dag_node", "stage_worker"):
    IMPOSSIBLE[_place, "gil"] = "a worker runs it as a job: see there"
IMPOSSIBLE["stage_worker", "segfault"] = "as with `os._exit`: the worker that builds it ends"
IMPOSSIBLE[LIFESPAN, "late"] = "as when it never yields: its process is ended before it returns"
IMPOSSIBLE["monitor_entity", "late"] = "as when it never yields: a monitor stores the last problem of `entity=` only"
del IMPOSSIBLE["job_isolated", "memory"]

_BUDGET = "longer than its budget of"
_LOST = {
    **dict.fromkeys(("job_async", "job_plain", MODEL), "failed: its worker died 2 times while running it"),
    CHANNEL: "failed: its worker died 3 times while running it",
    "job_isolated": "failed: ChildDied: the process of the isolated task",
    **dict.fromkeys(("step_async", "step_plain"), "needs_attention: the process that ran it died 3 times"),
    "step_queue": "of the step failed: worker",
    "dag_node": "failed: node 'act' failed: WorkerLost",
    **dict.fromkeys(
        (*STREAMS, *DECODER), "dead letter: lost Lost its engine died 2 times while running nothing but it"
    ),
    **dict.fromkeys(("stage_plain", "stage_loop"), "failed: its process died 3 times while it ran nothing else"),
    "stage_worker": "failed: its job failed: worker",
    LIFESPAN: "takes no work: the lifespan of application lifespan is not opened: its process died 3 times",
    **dict.fromkeys(MONITORS, "RefusedCallError: its process died 3 times while it ran nothing else"),
    SOURCE: "the source is not read: its process died 3 times while it ran nothing else",
}
_BLOCKED = {
    **dict.fromkeys(JOBS, _BUDGET),
    "step_async": "longer than its timeout of 8s and blocked the event loop",
    "step_plain": "failed: TimeoutError: step act",
    "step_queue": _BUDGET,
    "dag_node": _BUDGET,
    **dict.fromkeys(("stream_async", "stream_batch", *DECODER), "dead letter: lost Lost its engine died 2 times"),
    "stage_worker": _BUDGET,
    "stream_plain": "dead letter: failed",
    "stage_plain": "failed: it took longer than its budget of 8 s",
    "stage_loop": "failed: it ran longer than its budget of 8s and blocked the event loop",
    **dict.fromkeys(MONITORS, "RefusedCallError: it blocked the event loop for 12s"),
    SOURCE: "the source is not read: it blocked the event loop for 12s",
    CHANNEL: "not sent: opened: TimeoutError: channel told of monitor watch took longer than 8 s",
    MODEL: "TimeoutError: it took longer than 8s",
    LIFESPAN: "takes no work: the lifespan of application lifespan is not opened: its process died 3 times",
}
_TIMED_OUT = {
    **_BLOCKED,
    "step_async": "failed: TimeoutError",
    **dict.fromkeys(STREAMS, "dead letter: failed"),
    "stage_loop": "failed: it took longer than its budget of 8 s",
    LIFESPAN: "takes no work: the lifespan of application lifespan has not started within",
}
_TABLE: dict[str, dict[str, str]] = {
    "raises": {**dict.fromkeys(PLACES, "ValueError: misbehaved"), "stream_decoder": "ValueError misbehaved"},
    "verdict": {**dict.fromkeys(PLACES, "Verdict: misbehaved"), "stream_decoder": "Verdict misbehaved"},
    "unencodable": {
        **dict.fromkeys(PLACES, "(its message cannot be read: RuntimeError)"),
        **dict.fromkeys((*MONITORS, CHANNEL, SOURCE), "Unencodable: its text cannot be read"),
    },
    "background": dict.fromkeys(PLACES, "succeeded"),
    "leaks": dict.fromkeys(PLACES, "succeeded"),
    "output": dict.fromkeys(PLACES, "succeeded"),
    "result": {**dict.fromkeys(PLACES, "would take 50 MB"), **dict.fromkeys(STAGES, "succeeded")},
    "memory": {"job_isolated": "OutOfMemoryError: it took more than the 400 MB"},
    "exit": _LOST,
    "task_exits": _LOST,
    "segfault": _LOST,
    "gil": {**_LOST, "job_isolated": _BUDGET},
    "blocks": _BLOCKED,
    "late": _BLOCKED,
    "hangs": _TIMED_OUT,
    "swallows": {
        **_TIMED_OUT,
        "step_async": "longer than its timeout of 8s and did not end when it was cancelled",
        "stage_loop": "failed: it ran longer than its budget of 8s and did not end when it was cancelled",
    },
}


def expected(place: str, how: str) -> str:
    """What is stored about a piece of work; one that does nothing wrong succeeds."""
    return _TABLE[how][place] if how else "succeeded"


def guide_table() -> str:
    """The tables of the guide, in Markdown."""
    lines = ["| misbehaviour | place | what is stored about it |", "|---|---|---|"]
    for how, name in MISBEHAVIOURS.items():
        by_text: dict[str, list[str]] = {}
        for place, called in PLACES.items():
            if (place, how) not in IMPOSSIBLE:
                by_text.setdefault(expected(place, how), []).append(called)
        for text, places in by_text.items():
            where = "everywhere" if len(places) == len(PLACES) else ", ".join(places)
            lines.append(f"| {name} | {where} | {text} |")
    lines += [
        "",
        "Cells that cannot exist, or are not contained:",
        "",
        "| misbehaviour | place | why |",
        "|---|---|---|",
    ]
    for how, name in MISBEHAVIOURS.items():
        by_why: dict[str, list[str]] = {}
        for place, called in PLACES.items():
            if (place, how) in IMPOSSIBLE:
                by_why.setdefault(IMPOSSIBLE[place, how], []).append(called)
        lines += [f"| {name} | {', '.join(places)} | {why} |" for why, places in by_why.items()]
    return "\n".join(lines)
