"""The Grafana dashboard asks only for metrics that there are, by labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tidemill.core.codec import encode
from tidemill.engine.telemetry.exposition import registry_of
from tidemill.engine.telemetry.gpu import Gpu
from tidemill.engine.telemetry.hosts import GroupUsage, HostSample, ProcessUsage, Usage
from tidemill.store.telemetry.hosts import Totals

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs" / "grafana" / "tidemill.json").read_text())
GUIDE = (ROOT / "docs" / "telemetry.md").read_text()

SAMPLE = HostSample(
    cores=8, cpu=1.0, load=1.0, memory=1, memory_total=2, disk=1, disk_total=2, ours=Usage(0.5, 1),
    group=GroupUsage(1.0, 1, cpu_limit=1.0, memory_limit=1),
    gpus=(Gpu(0, "H200", 0.5, 1, 2, 60.0, 400.0),), processes=(ProcessUsage(1, 0.5, 1),),
)  # fmt: skip
MODEL = {"name": "minilm", "memory": 1, "phase": "loaded", "loads": 1, "hits": 1, "evictions": 0, "failures": 0}
STATES = dict.fromkeys(("waiting", "scheduled", "throttled", "no_worker", "running"), 1)
TOTALS: Any = Totals(
    queues=[{"queue": "q", **STATES, "oldest": 1.0, "workers": 1, "slots": 10}],  # pyright: ignore[reportArgumentType]
    workers={"alive": 1, "silent": 0, "lost_threads": 0},  # pyright: ignore[reportArgumentType]
    hosts=[{"host": "h", "data": encode(SAMPLE)}],  # pyright: ignore[reportArgumentType]
    processes=[{"host": "h", "pid": 1, "role": "worker", "gauges": encode({"lag": 0.1, "models": [MODEL]})}],  # pyright: ignore[reportArgumentType]
    batches={"batches": 1, "jobs": 2, "oldest": 3.0},  # pyright: ignore[reportArgumentType]
    counts={
        ("ended", ("q", "t", "succeeded")): 1.0,
        ("watchdog_trips", ("budget",)): 1.0,
        ("wait", ("q", "0.1")): 1.0,
        ("wait_sum", ("q",)): 0.1,
        ("run", ("q", "t", "0.1")): 1.0,
        ("run_sum", ("q", "t")): 0.1,
    },
)


def known() -> dict[str, set[str]]:
    """Every sample's name with its labels."""
    found: dict[str, set[str]] = {}
    for family in registry_of(TOTALS).collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def test_every_metric_of_the_dashboard_exists() -> None:
    asked = {name for text in expressions() for name in re.findall(r"tidemill_\w+", text)}
    assert len(asked) > 20
    assert asked <= known().keys()


def test_every_label_that_the_dashboard_selects_exists() -> None:
    metrics = known()
    for text in expressions():
        for name, selected in re.findall(r"(tidemill_\w+)\{([^}]*)\}", text):
            labels = set(re.findall(r"(\w+)=~?\"", selected))
            assert labels <= metrics[name], text


def test_every_metric_that_there_is_has_a_sentence_in_the_guide() -> None:
    documented = set(re.findall(r"tidemill_[a-z_0-9]+", GUIDE))
    parts = re.findall(r"`(_[a-z_0-9]+)`", GUIDE)
    for name in known():
        plain = re.sub(r"_(bucket|count|sum)$", "", name)
        told = plain in documented or any(plain.endswith(part) for part in parts)
        assert told or plain in ("tidemill_info", "tidemill_scrape_seconds"), name


def test_panels_have_titles_of_their_own_and_do_not_overlap() -> None:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
