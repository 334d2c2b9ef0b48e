"""What docs/models.md takes for granted: two models, and the package that loads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Vectors(list[list[float]]):
    def tolist(self) -> list[list[float]]:
        return [*self]


class SentenceTransformer:
    """A fake of the package's class: each text becomes its length."""

    def __init__(self, name: str, device: str) -> None: ...

    def encode(self, texts: list[str]) -> Vectors:
        return Vectors([float(len(text))] for text in texts)

    def to(self, device: str) -> None: ...


torch: Any = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: None))


def load_reranker() -> object:
    return object()


async def after(names: dict[str, Any]) -> None:
    async with names["app"].running():
        assert await (await names["app"].enqueue(names["embed"].call(["tide"]))) == [[4.0]]
