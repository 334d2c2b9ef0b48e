"""Gauges, counters and histograms of prometheus_client, made from totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tidemill.store.telemetry.history import BEYOND
from tidemill.store.telemetry.hosts import Key

Values = Iterable[tuple[tuple[str, ...], float]]


def gauge(name: str, about: str, labels: tuple[str, ...], values: Values) -> Metric:
    """A gauge with a value for each key."""
    made = GaugeMetricFamily(name, about, labels=labels)
    for key, value in values:
        made.add_metric(key, value)
    return made


def counter(name: str, about: str, labels: tuple[str, ...], values: Values) -> Metric:
    """A counter with a value for each key."""
    made = CounterMetricFamily(name, about, labels=labels)
    for key, value in values:
        made.add_metric(key, value)
    return made


def counters(rows: Iterable[tuple[str, str, str, tuple[str, ...]]], counts: Mapping[Key, float]) -> Iterator[Metric]:
    """The counters of these rows: what is counted, the metric's name, its description and its labels."""
    for name, shown, about, labels in rows:
        found = {key: value for (each, key), value in counts.items() if each == name and len(key) == len(labels)}
        yield counter(shown, about, labels, (found or ({} if labels else {(): 0.0})).items())


def histogram(
    name: str, shown: str, about: str, labels: tuple[str, ...], bounds: Iterable[str], counts: Mapping[Key, float]
) -> Metric:
    """The histogram of what was counted in buckets up to these bounds."""
    made = HistogramMetricFamily(shown, about, labels=labels)
    ends = [*bounds, BEYOND]
    for (each, key), total in counts.items():
        if each == f"{name}_sum":
            upto, buckets = 0.0, []
            for bound in ends:
                upto += counts.get((name, (*key, bound)), 0.0)
                buckets.append((bound, upto))
            made.add_metric(key, buckets, total)
    return made
