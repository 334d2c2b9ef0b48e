"""The metrics of streams, each labelled with its stream and source.

Counts come from the totals, which outlive dispatchers; gauges (lag, in flight) come from the last status of each
dispatcher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

from tidemill.core.codec import decode
from tidemill.engine.telemetry.metric_families import counters, gauge, histogram
from tidemill.store.telemetry.hosts import Key

#: Plans take from microseconds to minutes: the bucket bounds are powers of two, in microseconds.
PLAN_POWERS = tuple(range(7, 27, 2))
PLAN_BOUNDS = tuple(f"{2**power / 1e6:g}" for power in PLAN_POWERS)

_COUNTERS = (
    (
        "stream_messages",
        "tidemill_stream_messages",
        "Messages by what happened to them: arrived, done, failed, retried, dead, expired, duplicate, lost.",
        ("stream", "source", "outcome"),
    ),
    (
        "stream_forgotten_ids",
        "tidemill_stream_forgotten_ids",
        "Message ids that a dispatcher forgot before dedup_window was over, because more came than it remembers.",
        ("stream", "source"),
    ),
    (
        "stream_plan_runs",
        "tidemill_stream_plan_runs",
        "Runs of plans that were done, filtered or failed, by the source of the message.",
        ("stream", "plan", "source", "outcome"),
    ),
    ("stream_live", "tidemill_stream_live_requests", "Live requests, done or rejected.", ("stream", "outcome")),
    (
        "stream_sink",
        "tidemill_stream_sink_items",
        "Items for sinks: sent, retried because the sink refused them, or dead.",
        ("stream", "sink", "outcome"),
    ),
    ("stream_gc", "tidemill_stream_gc", "Full collections of garbage in engines.", ("stream",)),
    ("stream_gc_seconds", "tidemill_stream_gc_seconds", "Seconds that these collections took.", ("stream",)),
    ("stream_restarts", "tidemill_stream_engine_restarts", "Restarted engines.", ("stream",)),
)
_OF_SOURCES = (
    ("lag", "tidemill_stream_lag", "Messages that wait at the source, if it can report them."),
    ("waiting", "tidemill_stream_waiting", "Messages that the dispatcher has taken and not yet sent."),
    ("known_ids", "tidemill_stream_known_ids", "Ids of finished messages that this dispatcher remembers."),
    ("in_flight", "tidemill_stream_in_flight", "Messages in flight."),
    ("rate", "tidemill_stream_rate", "Messages done per second, just now."),
    ("weight", "tidemill_stream_weight", "The share of a source against the others."),
    ("max_qps", "tidemill_stream_limit", "The most messages a second that a source may send; absent without a limit."),
    ("enabled", "tidemill_stream_enabled", "Whether a source is enabled."),
    ("up", "tidemill_stream_source_up", "Whether a source can be read."),
    ("burst", "tidemill_stream_burst", "How many messages may pass a limit at once; absent if the limit decides."),
    ("qps_part", "tidemill_stream_limit_part", "The part of the limit that this dispatcher uses now."),
)

_OF_SINKS = (
    ("waiting", "tidemill_stream_sink_waiting", "Items that wait to be sent to a sink."),
    ("oldest", "tidemill_stream_sink_oldest_seconds", "How long the oldest item has waited for its sink."),
    ("up", "tidemill_stream_sink_up", "Whether a sink can be reached."),
)


def stream_metrics(statuses: Sequence[Any], counts: Mapping[Key, float]) -> Iterator[Metric]:
    """The gauges of dispatchers, and the counts."""
    yield from counters(_COUNTERS, counts)
    yield histogram(
        "stream_plan",
        "tidemill_stream_plan_seconds",
        "How long runs of plans took, by the source of the message.",
        ("stream", "plan", "source"),
        PLAN_BOUNDS,
        counts,
    )
    reports = [
        ((row["stream"], row["host"], str(row["pid"])), decode(row["status"], dict[str, Any])) for row in statuses
    ]
    for field, shown, about in _OF_SOURCES:
        values = [
            ((stream, source["name"], *who), source[field])
            for (stream, *who), status in reports
            for source in status["sources"]
            if source.get(field) is not None
        ]
        yield gauge(shown, about, ("stream", "source", "host", "pid"), values)
    for field, shown, about in _OF_SINKS:
        values = [
            ((stream, sink["name"], *who), sink[field])
            for (stream, *who), status in reports
            for sink in status.get("sinks", ())
            if sink.get(field) is not None
        ]
        yield gauge(shown, about, ("stream", "sink", "host", "pid"), values)
    engines = [(who, status["engines"]) for who, status in reports]
    yield gauge("tidemill_stream_engines", "Engines ready.", ("stream", "host", "pid"), engines)
