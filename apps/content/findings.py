"""Results of plans as texts: a verdict with its tone, its figures, the shape of a vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

Tone = Literal["ok", "run", "wait", "bad", "park", "off"]

STRIPES = 48
SHOWN_SCORES = 3


class Figure(msgspec.Struct, frozen=True):
    """A number between 0 and 1, with its name."""

    name: str
    value: float


class Finding(msgspec.Struct, frozen=True):
    """A result as people read it. `flagged`: a person should check this post."""

    verdict: str
    tone: Tone
    flagged: bool = False
    figures: tuple[Figure, ...] = ()
    summary: str | None = None
    stripes: tuple[float, ...] = ()
    """A vector's shape: the means of its stretches, from -1 to 1."""


def read_finding(plan: str, found: Mapping[str, Any]) -> Finding:
    """A stored result in words."""
    known = PLANS.get(plan)
    return Finding(f"{plan} found something", "off") if known is None else known.read(found)


def _spam(found: Mapping[str, Any]) -> Finding:
    figures = (Figure("spam", found["score"]),)
    return Finding("spam", "bad", True, figures) if found["spam"] else Finding("no spam", "ok", False, figures)


def _rank(found: Mapping[str, Any]) -> Finding:
    rank = found["rank"]
    words, tone = ("stands high", "ok") if rank > 0.25 else ("in the middle", "run") if rank > -0.2 else ("low", "off")
    figures = (Figure("nearness", (found["nearness"] + 1) / 2), Figure("quality", (found["quality"] + 2) / 3))
    return Finding(f"{words}, {rank:+.2f}", tone, False, figures)


def _banger(found: Mapping[str, Any]) -> Finding:
    figures = (Figure("banger", found["score"]),)
    if found["banger"]:
        return Finding("a candidate", "park", True, figures)
    return Finding("ordinary", "off", False, figures)


def _safety(found: Mapping[str, Any]) -> Finding:
    figures = (Figure(found["worst"], found["score"]),)
    if found["safe"]:
        return Finding("safe to show", "ok", False, figures)
    return Finding(f"not safe: {found['worst']}", "bad", True, figures)


def _terms(found: Mapping[str, Any]) -> Finding:
    breaking = [label for label in ("abuse", "violence", "adult", "scam", "spam") if label in found["scores"]]
    worst = sorted(breaking, key=lambda label: -found["scores"][label])[:SHOWN_SCORES]
    figures = tuple(Figure(label, found["scores"][label]) for label in worst)
    if not found["labels"]:
        return Finding("breaks no terms", "ok", False, figures)
    return Finding(f"may break: {', '.join(found['labels'])}", "bad", True, figures)


def _embedding(found: Mapping[str, Any]) -> Finding:
    vector = found["vector"]
    return Finding(f"{len(vector)} numbers", "run", False, (), found.get("summary"), stripes_of(vector))


class Known(msgspec.Struct, frozen=True):
    """The title of a plan, and how its results are shown."""

    title: str
    read: Callable[[Mapping[str, Any]], Finding]


PLANS: Mapping[str, Known] = {
    "SpamComment": Known("Spam in comments", _spam),
    "ReplyRanking": Known("Reply ranking", _rank),
    "BangerScreen": Known("Banger screen", _banger),
    "PostSafety": Known("Post safety", _safety),
    "SafetyPtos": Known("Terms of service", _terms),
    "EmbeddingWithSummary": Known("Embedding with summary", _embedding),
    "EmbeddingWithSummaryForReply": Known("With summary, for replies", _embedding),
    "EmbeddingV5": Known("Embedding v5", _embedding),
    "EmbeddingV5ForReply": Known("Embedding v5, for replies", _embedding),
}


def stripes_of(vector: list[float]) -> tuple[float, ...]:
    """A vector as a few stripes, the largest at full strength."""
    step = max(1, len(vector) // STRIPES)
    means = [sum(vector[at : at + step]) / step for at in range(0, step * min(STRIPES, len(vector)), step)]
    most = max((abs(mean) for mean in means), default=0.0) or 1.0
    return tuple(round(mean / most, 2) for mean in means)
