"""How much a program changed from one run to the next, in buckets."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from apps.classroom.blocks import Profile, tree_of_text
from apps.classroom.tree_kernel import compiled_distance
from tidemill.monitors.decoders import Distances
from tidemill.monitors.decoders.tree_distance import plain_distance

REWRITE_FROM = 0.221151
BUCKETS = ("relying on fortune", "step by step", "rewrite")
SLACK = 10
BIG_REWRITE = 0.5
REMEMBERED = 50_000

_distances = Distances(most=20_000, kernel=compiled_distance() or plain_distance)
_scores: OrderedDict[tuple[Profile, bytes, bytes], float] = OrderedDict()
"""The scores of texts that were compared before, by their digests: neither has to be read again."""


def change_score(before: str, after: str, profile: Profile = "document") -> float:
    """From 0 for the same program to 1: the edit distance of the trees, against the size of the larger one."""
    if before == after:
        return 0.0
    pair = (profile, _digest(before), _digest(after))
    score = _scores.get(pair)
    if score is None:
        one, other = tree_of_text(before, profile), tree_of_text(after, profile)
        score = _scores[pair] = min(1.0, _distances(one, other) / (max(one.size, other.size) + SLACK))
        if len(_scores) > REMEMBERED:
            _scores.popitem(last=False)
    return score


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def bucket_of(score: float, bound: float = REWRITE_FROM) -> int:
    """0 for no change at all, 1 for a small one, 2 for a rewrite."""
    return 0 if score == 0 else 1 if score < bound else 2
