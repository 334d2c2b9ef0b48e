"""Decoders: one step at a time gives what the whole at once gives."""

from __future__ import annotations

import math
import os
import random
import shutil
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from apps.classroom.tree_kernel import SOURCE, compiled_distance
from tests.support.examples import examples
from tidemill.core.errors import ConfigError
from tidemill.monitors.decoders import (
    Distances,
    Ewma,
    Filter,
    Hmm,
    Hysteresis,
    PathState,
    Rate,
    Tree,
    Viterbi,
    decode,
    distance,
    fit,
)
from tidemill.monitors.decoders.tree_distance import Kernel, plain_distance

THREE = Hmm(
    start=(0.7, 0.0, 0.3),
    transitions=((0.94, 0.01, 0.05), (0.03, 0.92, 0.05), (0.1, 0.05, 0.85)),
    emissions=((0.13, 0.86, 0.01), (0.25, 0.6, 0.15), (0.83, 0.17, 0.0)),
)

# -- hidden Markov models -------------------------------------------------------------------------


def probabilities(size: int) -> st.SearchStrategy[tuple[float, ...]]:
    return (
        st.lists(st.integers(0, 20), min_size=size, max_size=size)
        .filter(sum)
        .map(lambda weights: tuple(weight / sum(weights) for weight in weights))
    )


@st.composite
def models(draw: Any) -> Hmm:
    states, symbols = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return Hmm(
        draw(probabilities(states)),
        tuple(draw(probabilities(states)) for _ in range(states)),
        tuple(draw(probabilities(symbols)) for _ in range(states)),
    )


@given(models(), st.data())
def test_a_path_grown_step_by_step_is_the_path_decoded_at_once(model: Hmm, data: Any) -> None:
    symbols = len(model.emissions[0])  # pyright: ignore[reportOptionalSubscript]
    observations = data.draw(st.lists(st.integers(0, symbols - 1), max_size=80))
    state = PathState()
    for length, observation in enumerate(observations, 1):
        path = Viterbi(model, state)
        path.step(observation)
        expected = decode(model, observations[:length])
        assert path.path == expected
        assert path.state == expected[-1]
        state = msgspec.json.decode(msgspec.json.encode(path.data), type=PathState)  # as after a restart


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60))
def test_the_same_holds_for_a_gaussian_model(observations: list[float]) -> None:
    model = Hmm((0.5, 0.5), ((0.9, 0.1), (0.2, 0.8)), means=((-1.0,), (2.0,)), variances=((1.0,), (0.5,))).validate()
    path = Viterbi(model)
    for observation in observations:
        path.step(observation)
    assert path.path == decode(model, observations)


def test_a_long_path_is_kept_small() -> None:
    path = Viterbi(THREE)
    draw = random.Random(1)
    observations = [draw.choice([0, 1, 1, 1, 2]) for _ in range(5000)]
    for observation in observations:
        path.step(observation)
    assert path.path == decode(THREE, observations)
    assert len(path.data.open) < 100
    assert path.streak() == next(i for i, s in enumerate(reversed(path.path)) if s != path.state)


@given(models(), st.data())
def test_filtered_beliefs_are_those_of_all_paths_together(model: Hmm, data: Any) -> None:
    symbols = len(model.emissions[0])  # pyright: ignore[reportOptionalSubscript]
    observations = data.draw(st.lists(st.integers(0, symbols - 1), min_size=1, max_size=4))
    weights = [0.0] * model.states
    for path in _paths(model.states, len(observations)):
        weights[path[-1]] += _probability(model, path, observations)
    kept = Filter(model)
    for observation in observations:
        kept.step(observation)
    if sum(weights) > 1e-9:
        assert kept.beliefs == pytest.approx([w / sum(weights) for w in weights])
    assert sum(kept.beliefs) == pytest.approx(1.0)


def _paths(states: int, length: int) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for _ in range(length):
        paths = [(*path, state) for path in paths for state in range(states)]
    return paths


def _probability(model: Hmm, path: tuple[int, ...], observations: list[int]) -> float:
    assert model.emissions
    p = model.start[path[0]]
    for before, after in pairwise(path):
        p *= model.transitions[before][after]
    return p * math.prod(model.emissions[s][o] for s, o in zip(path, observations, strict=True))


def test_a_fitted_model_finds_the_one_that_made_the_data() -> None:
    draw = random.Random(7)
    sequences = []
    for _ in range(40):
        state, sequence = draw.choice([0, 1]), []
        for _ in range(80):
            sequence.append(draw.choices([0, 1, 2], weights=[(8, 1, 1), (1, 1, 8)][state])[0])
            state = state if draw.random() < 0.95 else 1 - state
        sequences.append(sequence)
    model = fit(sequences, states=2, symbols=3, rounds=60)
    assert model.emissions
    strongest = sorted(max(range(3), key=row.__getitem__) for row in model.emissions)
    assert strongest == [0, 2]
    assert all(model.transitions[i][i] > 0.85 for i in range(2))
    assert Hmm.load(model.dump()) == model


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"start": [1], "transitions": [[1]]}', "either emissions or means"),
        ('{"start": [0.5, 0.4], "transitions": [[1, 0], [0, 1]], "emissions": [[1], [1]]}', "add up to 1"),
        ('{"start": [1], "transitions": [[1, 0]], "emissions": [[1]]}', "1 rows of 1"),
        ('{"start": "x"}', "not a model"),
        ("cos\\nsystem", "not a model"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Hmm.load(text)


# -- trees ----------------------------------------------------------------------------------------

Node = tuple[str, str, tuple[Any, ...]]
names = st.tuples(st.sampled_from("abc"), st.sampled_from("xy"))
nodes = st.recursive(
    names.map(lambda name: (*name, ())),
    lambda some: st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.lists(some, max_size=3).map(tuple)),
    max_leaves=7,
)


def by_definition(one: tuple[Node, ...], other: tuple[Node, ...]) -> float:
    """The distance of two forests as its definition has it."""

    @cache
    def cost(f: tuple[Node, ...], g: tuple[Node, ...]) -> float:
        if not f or not g:
            return float(sum(map(_size, f or g)))
        (k1, l1, c1), (k2, l2, c2) = f[-1], g[-1]
        rename = 0.0 if (k1, l1) == (k2, l2) else 0.3 if k1 == k2 else 1.0
        return min(
            cost(f[:-1] + c1, g) + 1,
            cost(f, g[:-1] + c2) + 1,
            cost(f[:-1], g[:-1]) + cost(c1, c2) + rename,
        )

    return cost(one, other)


def _size(node: Node) -> int:
    return 1 + sum(map(_size, node[2]))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("there is no C compiler")
    found = compiled_distance(tmp_path_factory.mktemp("kernel") / "kernel.so")
    assert found is not None
    return found


@examples(150)
@given(nodes, nodes)
def test_the_distance_of_two_trees_is_that_of_its_definition(one: Node, other: Node) -> None:
    expected = by_definition((one,), (other,))
    a, b = Tree.of(one), Tree.of(other)
    assert distance(a, b) == pytest.approx(expected)
    assert plain_distance(a.left, b.left, 0.3, 1.0) == pytest.approx(expected)
    assert plain_distance(a.right, b.right, 0.3, 1.0) == pytest.approx(expected)


def test_the_compiled_kernel_says_what_the_plain_one_says(compiled: Kernel) -> None:
    draw = random.Random(3)
    for _ in range(60):
        a, b = Tree.of(_random_tree(draw, 40)), Tree.of(_random_tree(draw, 40))
        for one, other in ((a.left, b.left), (a.right, b.right)):
            assert compiled(one, other, 0.3, 1.0) == pytest.approx(plain_distance(one, other, 0.3, 1.0))


def test_a_kernel_that_is_older_than_its_source_is_compiled_again(tmp_path: Path, compiled: Kernel) -> None:
    library = tmp_path / "kernel.so"
    library.write_bytes(b"of another machine")
    assert compiled_distance(library) is None
    os.utime(library, (0, SOURCE.stat().st_mtime - 1))
    assert compiled_distance(library) is not None


def test_trees_are_compared_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compiled_distance(tmp_path / "kernel.so") is None
    assert list(tmp_path.iterdir()) == []


def _random_tree(draw: random.Random, size: int) -> Node:
    children: list[Node] = []
    left = draw.randint(0, size - 1)
    while left > 0:
        part = draw.randint(1, left)
        children.append(_random_tree(draw, part))
        left -= part
    return (draw.choice("abcd"), draw.choice("xyz"), tuple(children))


def test_a_tree_may_be_as_deep_as_a_long_program() -> None:
    deep: Node = ("a", "x", ())
    for _ in range(5000):
        deep = ("a", "x", (deep,))
    assert Tree.of(deep).size == 5001


def test_nothing_is_as_far_from_a_tree_as_the_tree_is_large() -> None:
    assert distance(Tree.of(None), Tree.of(("a", "x", (("b", "y", ()),)))) == 2.0
    assert distance(Tree.of(None), Tree.of(None)) == 0.0


def test_pairs_are_remembered_but_not_without_end() -> None:
    known = Distances(most=5)
    trees = [Tree.of(("a", str(i), ())) for i in range(10)]
    assert known(trees[0], trees[1]) == known(trees[1], trees[0]) == 0.3
    for tree in trees:
        known(trees[0], tree)
    assert len(known) == 5


# -- signals --------------------------------------------------------------------------------------


def test_a_threshold_with_hysteresis_does_not_chatter() -> None:
    gate = Hysteresis(high=10, low=5)
    values = [4, 9, 10, 7, 6, 5, 9]
    assert [gate.step(value, at) for at, value in enumerate(values)] == [False, False, True, True, True, False, False]
    gate.step(11, 20.0)
    gate.step(8, 21.0)
    assert gate.since == 20.0
    with pytest.raises(ConfigError, match="must be reached"):
        Hysteresis(high=1, low=2)


def test_an_average_forgets_by_half_in_its_half_life() -> None:
    mean = Ewma(half_life=10)
    mean.step(0.0, 0.0)
    assert mean.step(100.0, 10.0) == pytest.approx(50.0)
    assert mean.deviation(100.0) > 0


def test_a_rate_counts_only_its_window_and_knows_how_long_it_was_silent() -> None:
    rate = Rate(window=10)
    for at in (0.0, 1.0, 2.0, 11.0):
        rate.step(at)
    assert rate.rate(11.0) == pytest.approx(0.2)
    assert rate.silence(15.0) == 4.0
    assert Rate(window=1).silence(0.0) == math.inf
