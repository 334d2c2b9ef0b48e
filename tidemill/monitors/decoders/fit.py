"""Fitting a categorical or Gaussian hidden Markov model to sequences: Baum-Welch, with numpy.

Gaussian models may as well be fitted by any other library and written as JSON: see `Hmm`. `fit` needs numpy
(`pip install numpy`), decoding does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.monitors.decoders.hmm import Hmm

_LEAST = 1e-12


def fit(
    sequences: Sequence[Sequence[Any]],
    *,
    states: int,
    symbols: int | None = None,
    rounds: int = 100,
    tolerance: float = 1e-4,
    seed: int = 0,
    initial: Hmm | None = None,
) -> Hmm:
    """The model that makes these sequences most likely, from where the search began.

    With `symbols`, observations are indexes below it; without, numbers or vectors of numbers.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise ConfigError("fitting a model needs numpy: pip install numpy") from error
    given = [np.asarray(sequence) for sequence in sequences if len(sequence)]
    if not given:
        raise ConfigError("there is nothing to fit a model to")
    random = np.random.default_rng(seed)
    start, moves, spread = _begin(np, random, given, states, symbols, initial)
    before = -np.inf
    for _ in range(rounds):
        total = 0.0
        new_start, new_moves = np.zeros(states), np.zeros((states, states))
        weights = []
        for sequence in given:
            likely = _likelihoods(np, sequence, spread, symbols)
            gamma, xi, logp = _expect(np, start, moves, likely)
            total += logp
            new_start += gamma[0]
            new_moves += xi
            weights.append(gamma)
        start = _normal(new_start)
        moves = _normal(new_moves)
        spread = _maximise(np, given, weights, states, symbols)
        if total - before < tolerance:
            break
        before = total
    if symbols is not None:
        return _model(start, moves, emissions=spread)
    return _model(start, moves, means=spread[0], variances=spread[1])


def _begin(np: Any, random: Any, given: Any, states: int, symbols: int | None, initial: Hmm | None) -> Any:
    if initial is not None:
        spread: Any = (
            np.array(initial.emissions)
            if symbols is not None
            else (np.array(initial.means), np.array(initial.variances))
        )
        return np.array(initial.start), np.array(initial.transitions), spread
    moves = _normal(np.eye(states) * 4 + random.random((states, states)))
    start = _normal(np.ones(states) + random.random(states))
    if symbols is not None:
        return start, moves, _normal(random.random((states, symbols)) + 0.2)
    flat = np.concatenate([sequence.reshape(len(sequence), -1) for sequence in given])
    means = flat[random.choice(len(flat), states, replace=len(flat) < states)].astype(float)
    return start, moves, (means, np.tile(flat.var(axis=0) + _LEAST, (states, 1)))


def _likelihoods(np: Any, sequence: Any, spread: Any, symbols: int | None) -> Any:
    if symbols is not None:
        return spread[:, sequence.astype(int)].T + _LEAST
    means, variances = spread
    x = sequence.reshape(len(sequence), 1, -1)
    logs = -0.5 * (np.log(2 * np.pi * variances) + (x - means) ** 2 / variances).sum(axis=2)
    return np.exp(logs - logs.max(axis=1, keepdims=True)) + _LEAST


def _expect(np: Any, start: Any, moves: Any, likely: Any) -> Any:
    """How likely each state and each move was: forwards and backwards, scaled at every step."""
    n, states = likely.shape
    forward, scale = np.zeros((n, states)), np.zeros(n)
    forward[0] = start * likely[0]
    for t in range(n):
        if t:
            forward[t] = (forward[t - 1] @ moves) * likely[t]
        scale[t] = forward[t].sum() or _LEAST
        forward[t] /= scale[t]
    backward = np.ones((n, states))
    xi = np.zeros((states, states))
    for t in range(n - 2, -1, -1):
        ahead = likely[t + 1] * backward[t + 1] / scale[t + 1]
        backward[t] = moves @ ahead
        xi += np.outer(forward[t], ahead) * moves
    gamma = forward * backward
    return gamma / gamma.sum(axis=1, keepdims=True), xi, float(np.log(scale).sum())


def _maximise(np: Any, given: Any, weights: Any, states: int, symbols: int | None) -> Any:
    if symbols is not None:
        counts = np.zeros((states, symbols))
        for sequence, gamma in zip(given, weights, strict=True):
            for symbol in range(symbols):
                counts[:, symbol] += gamma[sequence == symbol].sum(axis=0)
        return _normal(counts)
    x = np.concatenate([sequence.reshape(len(sequence), -1) for sequence in given])
    gamma = np.concatenate(weights)
    total = gamma.sum(axis=0)[:, None] + _LEAST
    means = gamma.T @ x / total
    variances = np.stack([(gamma[:, k, None] * (x - means[k]) ** 2).sum(axis=0) for k in range(states)]) / total
    return means, variances + 1e-6


def _normal(rows: Any) -> Any:
    return (rows + _LEAST) / (rows + _LEAST).sum(axis=-1, keepdims=True)


def _model(start: Any, moves: Any, **spread: Any) -> Hmm:
    def plain(rows: Any) -> Any:
        return tuple(tuple(float(p) for p in row) for row in rows)

    kept = {name: plain(rows) for name, rows in spread.items()}
    return Hmm(tuple(float(p) for p in start), plain(moves), **kept).validate()
