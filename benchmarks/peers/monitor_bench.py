"""The peers of monitors: apted on pairs of trees and hmmlearn on a sequence, both from stdin, figures to stdout.

In : {"pairs": [[tree, tree], ...], "observations": [...], "model": {...}, "repeats": n}; a tree is [kind, label, trees]
Out: {"apted_ms": ..., "distances": [...], "hmmlearn_ms": ..., "last": ...}; what is not installed is left out.
"""

import json
import sys
import time
from typing import Any


def measure_apted(pairs: list[Any]) -> dict[str, Any]:
    from apted import APTED, Config  # pyright: ignore[reportMissingImports]

    class Costs(Config):
        def rename(self, one: Any, other: Any) -> float:
            return 0 if one[:2] == other[:2] else 0.3 if one[0] == other[0] else 1

        def children(self, node: Any) -> Any:
            return node[2]

    began = time.perf_counter()
    distances = [APTED(one, other, Costs()).compute_edit_distance() for one, other in pairs]
    return {"apted_ms": (time.perf_counter() - began) * 1000 / len(pairs), "distances": distances}


def measure_hmmlearn(observations: list[int], model: dict[str, Any], repeats: int) -> dict[str, Any]:
    import numpy as np
    from hmmlearn.hmm import CategoricalHMM  # pyright: ignore[reportMissingImports]

    made = CategoricalHMM(n_components=len(model["start"]))
    made.startprob_ = np.array(model["start"]) / sum(model["start"])
    made.transmat_ = np.array([np.array(row) / sum(row) for row in model["transitions"]])
    made.emissionprob_ = np.array([np.array(row) / sum(row) for row in model["emissions"]])
    made.decode(np.array(observations).reshape(-1, 1))
    began = time.perf_counter()
    for _ in range(repeats):
        # From the list that grows by one, as it is done for every new run.
        _, path = made.decode(np.array(observations).reshape(-1, 1))
    return {"hmmlearn_ms": (time.perf_counter() - began) * 1000 / repeats, "path": path.tolist()}


def main() -> None:
    given = json.load(sys.stdin)
    found: dict[str, Any] = {}
    try:
        found |= measure_apted(given["pairs"])
    except ImportError as error:
        found["apted_missing"] = str(error)
    try:
        found |= measure_hmmlearn(given["observations"], given["model"], given["repeats"])
    except ImportError as error:
        found["hmmlearn_missing"] = str(error)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
