"""Trains a model from logs: `python -m apps.classroom.train events.jsonl > model.json`.

The events are those of the API, one a line. Scores come from consecutive runs of each student; the bound between small
changes and rewrites is the 95th percentile of the scores that are not zero. States are put in the order iterator,
explorer, stuck by what they emit.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from apps.classroom.blocks import BadProgramError, Profile
from apps.classroom.episodes import RUN_START
from apps.classroom.score import bucket_of, change_score
from apps.classroom.student import STATES, workspace_of
from tidemill.core.errors import ConfigError
from tidemill.monitors.decoders import Hmm, fit
from tidemill.sources.base import read_time

PERCENTILE = 0.95


def scores_of(events: Iterable[dict[str, Any]], profile: Profile = "document") -> dict[str, list[float]]:
    """The change scores of each student, in order."""
    runs: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for event in events:
        if event.get("eventType") == RUN_START:
            at = read_time(event.get("recieved_at") or event.get("received_at"))
            runs[str(event["studentID"])].append((at, workspace_of(event)))
    scores: dict[str, list[float]] = {}
    for student, programs in runs.items():
        programs.sort(key=lambda run: run[0])
        found: list[float] = []
        for (_, before), (_, after) in zip(programs, programs[1:], strict=False):  # noqa: RUF007
            try:
                found.append(change_score(before, after, profile))
            except BadProgramError:
                continue
        if found:
            scores[student] = found
    return scores


def bound_of(scores: dict[str, list[float]]) -> float:
    """From which score on a change is a rewrite."""
    changed = sorted(score for found in scores.values() for score in found if score > 0)
    if not changed:
        raise ConfigError("no run differs from the one before it: there is nothing to learn from")
    return changed[min(len(changed) - 1, int(len(changed) * PERCENTILE))]


def train(scores: dict[str, list[float]], bound: float, *, rounds: int = 200) -> Hmm:
    """A model of three states over the buckets of these scores."""
    sequences = [[bucket_of(score, bound) for score in found] for found in scores.values()]
    initial = Hmm(
        start=(0.6, 0.1, 0.3),
        transitions=((0.9, 0.05, 0.05), (0.05, 0.9, 0.05), (0.1, 0.05, 0.85)),
        emissions=((0.15, 0.8, 0.05), (0.2, 0.6, 0.2), (0.8, 0.18, 0.02)),
    )
    model = fit(sequences, states=3, symbols=3, rounds=rounds, initial=initial)
    return ordered(model)


def ordered(model: Hmm) -> Hmm:
    """The same model with its states in order: stuck emits most zeros, explorer most rewrites of the others."""
    emissions = model.emissions or ()
    stuck = max(range(3), key=lambda state: emissions[state][0])
    explorer = max((state for state in range(3) if state != stuck), key=lambda state: emissions[state][2])
    order = [next(state for state in range(3) if state not in (stuck, explorer)), explorer, stuck]
    return Hmm(
        start=tuple(model.start[state] for state in order),
        transitions=tuple(tuple(model.transitions[i][j] for j in order) for i in order),
        emissions=tuple(emissions[state] for state in order),
        names=STATES,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a model from logged events, one JSON object a line.")
    parser.add_argument("events", type=Path)
    parser.add_argument("--profile", choices=["document", "corrected"], default="document")
    wanted = parser.parse_args()
    events = [msgspec.json.decode(line) for line in wanted.events.read_bytes().splitlines() if line.strip()]
    scores = scores_of(events, wanted.profile)
    bound = bound_of(scores)
    sys.stderr.write(f"{sum(map(len, scores.values()))} changes of {len(scores)} students; rewrites from {bound:.6f}\n")
    sys.stdout.write(train(scores, bound).dump().decode() + "\n")


if __name__ == "__main__":
    main()
