"""Hidden Markov models, decoded step by step: O(states²) for each new observation, however long the past is.

model = Hmm.read("model.json")
path = Viterbi(model)                       # or model.viterbi(state.path) to go on from a stored one
path.step(observation)                      # an index for a categorical model, a number or several for a Gaussian one
path.state, path.path                       # the most likely state now, and the whole most likely path

The most likely path of all observations so far is what decoding them from scratch would give. Where all candidates have
the same past, that past is decided for good and kept in runs of equal states; only the rest can still change.
Parameters are JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import add
from pathlib import Path
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError

DECIDE_EVERY = 32  # steps between two looks at what is decided for good
IMPOSSIBLE = -1e6  # in place of the logarithm of zero: no number of unlikely steps comes near, and JSON can hold it


class Hmm(msgspec.Struct, frozen=True):
    """The parameters of a model: categorical with `emissions[state][symbol]`, or Gaussian with means and variances."""

    start: tuple[float, ...]
    transitions: tuple[tuple[float, ...], ...]
    emissions: tuple[tuple[float, ...], ...] | None = None
    means: tuple[tuple[float, ...], ...] | None = None
    variances: tuple[tuple[float, ...], ...] | None = None
    names: tuple[str, ...] = ()

    @staticmethod
    def read(path: str | Path) -> Hmm:
        """A model from a JSON file."""
        try:
            return Hmm.load(Path(path).read_bytes())
        except OSError as error:
            raise ConfigError(f"the model {path} cannot be read: {error}") from error

    @staticmethod
    def load(data: bytes | str) -> Hmm:
        """A model from JSON; a `ConfigError` says what is wrong with it."""
        try:
            return msgspec.json.decode(data, type=Hmm).validate()
        except msgspec.DecodeError as error:
            raise ConfigError(f"this is not a model: {error}") from error

    def dump(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @property
    def states(self) -> int:
        return len(self.start)

    def validate(self) -> Hmm:
        n = self.states
        if (self.emissions is None) == (self.means is None):
            raise ConfigError("a model has either emissions or means and variances")
        if len(self.transitions) != n or any(len(row) != n for row in self.transitions):
            raise ConfigError(f"transitions must be {n} rows of {n}")
        rows = [("start", self.start), *(("transitions", row) for row in self.transitions)]
        if self.emissions is not None:
            rows += [("emissions", row) for row in self.emissions]
            if len(self.emissions) != n or len({len(row) for row in self.emissions}) != 1:
                raise ConfigError(f"emissions must be {n} rows of equal length")
        for what, row in rows:
            if any(not 0 <= p <= 1 for p in row) or abs(sum(row) - 1) > 0.01:
                raise ConfigError(f"{what}: {row} are not probabilities that add up to 1")
        if self.means is not None:
            shapes = {len(row) for row in self.means} | {len(row) for row in self.variances or ()}
            if len(self.means) != n or len(self.variances or ()) != n or len(shapes) != 1:
                raise ConfigError(f"means and variances must be {n} rows of equal length")
            if any(v <= 0 for row in self.variances or () for v in row):
                raise ConfigError("variances must be above zero")
        return self

    def emission_logs(self, observation: Any) -> list[float]:
        """How likely each state makes an observation, as logarithms."""
        if self.emissions is not None:
            symbol = int(observation)
            if not 0 <= symbol < len(self.emissions[0]):
                raise ValueError(f"{observation!r} is not one of the {len(self.emissions[0])} symbols of the model")
            return [log(row[symbol]) for row in self.emissions]
        values = (observation,) if isinstance(observation, int | float) else tuple(observation)
        return [
            sum(
                -0.5 * (math.log(2 * math.pi * v) + (x - m) ** 2 / v)
                for x, m, v in zip(values, means, variances, strict=True)
            )
            for means, variances in zip(self.means or (), self.variances or (), strict=True)
        ]


class PathState(msgspec.Struct, omit_defaults=True):
    """A decoding as it is stored: plain data, to be a part of an entity's state."""

    scores: list[float] = []
    """The log-likelihood of the best path that ends in each state."""
    decided: list[tuple[int, int]] = []
    """The part of the path that no later observation can change: state and how often, in turn."""
    open: list[list[int]] = []
    """For each step after it, from which state each state was best reached."""
    steps: int = 0


class Viterbi:
    """The most likely path, one observation at a time."""

    def __init__(self, model: Hmm, state: PathState | None = None) -> None:
        self._model = model
        self.data = state if state is not None else PathState()
        self._known = _known_steps(model)

    def step(self, observation: Any) -> int:
        """Take one more observation; returns the state that is most likely now."""
        data = self.data
        if not data.steps:
            data.scores = _first_scores(self._model, observation)
        else:
            before, back, scores = data.scores, [], []
            for step in self._known.get(observation) or _steps(self._model, observation):
                reached = list(map(add, before, step))
                best = max(reached)
                back.append(reached.index(best))
                scores.append(best)
            data.open.append(back)
            data.scores = scores
            if data.steps % DECIDE_EVERY == 0:
                self._decide()
        data.steps += 1
        best = data.scores
        return best.index(max(best))

    @property
    def state(self) -> int:
        """The state that is most likely now."""
        scores = self.data.scores
        return scores.index(max(scores))

    @property
    def path(self) -> list[int]:
        """The most likely state at every step."""
        return [state for state, times in self.data.decided for _ in range(times)] + self.tail

    @property
    def tail(self) -> list[int]:
        """The part of the path that a later observation can still change."""
        state = self.state
        found = [state]
        for back in reversed(self.data.open):
            state = back[state]
            found.append(state)
        found.reverse()
        return found

    def streak(self) -> int:
        """For how many steps the path has been in its present state."""
        if not self.data.steps:
            return 0
        tail = self.tail
        state, length = tail[-1], 0
        for each in reversed(tail):
            if each != state:
                return length
            length += 1
        for each, times in reversed(self.data.decided):
            if each != state:
                break
            length += times
        return length

    def _decide(self) -> None:
        """Move what all candidates have in common from the open part to the decided one."""
        data = self.data
        ends = set(range(len(data.scores)))
        for index in range(len(data.open) - 1, -1, -1):
            ends = {data.open[index][end] for end in ends}
            if len(ends) == 1:
                self._keep(index, ends.pop())
                return

    def _keep(self, index: int, state: int) -> None:
        data = self.data
        path = [state]
        for back in reversed(data.open[:index]):
            path.append(back[path[-1]])
        for each in reversed(path):
            if data.decided and data.decided[-1][0] == each:
                data.decided[-1] = (each, data.decided[-1][1] + 1)
            else:
                data.decided.append((each, 1))
        del data.open[: index + 1]


class Filter:
    """How likely each state is, given everything so far: forward filtering, one observation at a time."""

    def __init__(self, model: Hmm, beliefs: Sequence[float] = ()) -> None:
        self._model = model
        self.beliefs = list(beliefs)

    def step(self, observation: Any) -> list[float]:
        """Take one more observation; returns the probability of each state."""
        model, n = self._model, self._model.states
        before = self.beliefs
        if before:
            expected = [sum(before[i] * model.transitions[i][j] for i in range(n)) for j in range(n)]
        else:
            expected = list(model.start)
        logs = model.emission_logs(observation)
        most = max(logs)
        weighed = [p * math.exp(e - most) for p, e in zip(expected, logs, strict=True)]
        total = sum(weighed)
        # An observation that the model calls impossible teaches nothing.
        self.beliefs = [w / total for w in weighed] if total > 0 else expected
        return self.beliefs


def decode(model: Hmm, observations: Sequence[Any]) -> list[int]:
    """The most likely path of a whole sequence, from scratch."""
    if not observations:
        return []
    n = model.states
    scores = _first_scores(model, observations[0])
    backs: list[list[int]] = []
    for observation in observations[1:]:
        steps = _steps(model, observation)
        back = [max(range(n), key=lambda i, j=j: scores[i] + steps[j][i]) for j in range(n)]
        scores = [scores[back[j]] + steps[j][back[j]] for j in range(n)]
        backs.append(back)
    path = [max(range(n), key=scores.__getitem__)]
    for back in reversed(backs):
        path.append(back[path[-1]])
    return path[::-1]


def log(p: float) -> float:
    """The logarithm of a probability."""
    return math.log(p) if p > 0 else IMPOSSIBLE


def _first_scores(model: Hmm, observation: Any) -> list[float]:
    return [log(p) + e for p, e in zip(model.start, model.emission_logs(observation), strict=True)]


def _steps(model: Hmm, observation: Any) -> list[list[float]]:
    """The log probability of moving from each state to each other and making an observation there."""
    return [
        [log(row[target]) + emission for row in model.transitions]
        for target, emission in enumerate(model.emission_logs(observation))
    ]


@lru_cache(maxsize=64)
def _known_steps(model: Hmm) -> dict[Any, list[list[float]]]:
    """The same for every symbol of a categorical model."""
    symbols = range(0 if model.emissions is None else len(model.emissions[0]))
    return {symbol: _steps(model, symbol) for symbol in symbols}
