"""Small classifiers: one logistic regression per label, on static embeddings.

`python -m apps.content.classifiers` makes the data, trains, tests on posts that were not trained on, and writes
`classifiers.json`, which is kept in the repository.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from apps.content.corpus import PHRASES, labelled
from apps.content.embedding import StaticModel

FILE = Path(__file__).with_name("classifiers.json")
LABELS = tuple(PHRASES)
TRAINED_ON, TESTED_ON = 3000, 600


class Classifiers:
    """The probability of each label, from embeddings."""

    def __init__(self, weights: dict[str, list[float]]) -> None:
        self.labels = tuple(weights)
        matrix = np.array([weights[label] for label in self.labels], dtype=np.float32)
        self._weights, self._bias = matrix[:, :-1].T, matrix[:, -1]

    @classmethod
    def load(cls) -> Classifiers:
        return cls(json.loads(FILE.read_text()))

    def score(self, vectors: np.ndarray) -> list[dict[str, float]]:
        """For each vector, how likely each label is."""
        found = 1 / (1 + np.exp(-(vectors @ self._weights + self._bias)))
        return [dict(zip(self.labels, (round(float(each), 4) for each in row), strict=True)) for row in found]


def train(model: StaticModel, label: str, seed: int = 1) -> list[float]:
    """Logistic regression by gradient descent, with a little decay."""
    examples = labelled(label, TRAINED_ON, seed)
    x = model.encode([text for text, _ in examples])
    x = np.hstack([x, np.ones((len(x), 1), dtype=np.float32)])
    y = np.array([answer for _, answer in examples], dtype=np.float32)
    weights = np.zeros(x.shape[1], dtype=np.float32)
    for step in range(400):
        error = 1 / (1 + np.exp(-(x @ weights))) - y
        weights -= 8.0 / (1 + step / 200) * (x.T @ error / len(y) + 1e-4 * weights)
    return [round(float(each), 4) for each in weights]


def accuracy(model: StaticModel, classifiers: Classifiers, label: str, seed: int = 2) -> float:
    """The share of new posts that are classified correctly."""
    examples = labelled(label, TESTED_ON, seed)
    scores = classifiers.score(model.encode([text for text, _ in examples]))
    return sum((score[label] > 0.5) == answer for score, (_, answer) in zip(scores, examples, strict=True)) / TESTED_ON


def main() -> None:
    model = StaticModel()
    weights = {label: train(model, label) for label in LABELS}
    FILE.write_text(json.dumps(weights, separators=(",", ":")) + "\n")
    trained = Classifiers(weights)
    for label in LABELS:
        print(f"{label:<11} {accuracy(model, trained, label):.1%} of {TESTED_ON} fresh posts")


if __name__ == "__main__":
    main()
