"""A short text for a long one: the sentence that says most, or a language model where one is configured.

CONTENT_LLM_URL   an endpoint that speaks the chat completions protocol
CONTENT_LLM_MODEL which of its models
CONTENT_LLM_KEY   the key, if it wants one
"""

from __future__ import annotations

import os
import re
import urllib.request
from typing import Protocol

import msgspec
import numpy as np

from apps.content.embedding import StaticModel

_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")


class Summariser(Protocol):
    def summarise(self, text: str) -> str: ...


class LocalSummariser:
    """The sentence nearest to the whole."""

    def __init__(self, model: StaticModel) -> None:
        self._model = model

    def summarise(self, text: str) -> str:
        sentences = [part.strip() for part in _SENTENCES.split(text) if part.strip()]
        if len(sentences) < 2:
            return text.strip()[:200]
        vectors = self._model.encode([text, *sentences])
        return sentences[int(np.argmax(vectors[1:] @ vectors[0]))][:200]


class _Message(msgspec.Struct):
    content: str


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class LlmSummariser:
    """A language model behind HTTP."""

    def __init__(self, url: str, model: str, key: str | None) -> None:
        self._url, self._model, self._key = url, model, key

    def summarise(self, text: str) -> str:
        asked = {
            "model": self._model,
            "max_tokens": 60,
            "messages": [{"role": "user", "content": f"Say in one short sentence what this post is about:\n\n{text}"}],
        }
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self._key}"} if self._key else {})
        request = urllib.request.Request(self._url, msgspec.json.encode(asked), headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - the operator's own address
            return msgspec.json.decode(answer.read(), type=_Answer).choices[0].message.content.strip()


def summariser(model: StaticModel) -> Summariser:
    """The one that is configured."""
    url = os.environ.get("CONTENT_LLM_URL")
    if url is None:
        return LocalSummariser(model)
    return LlmSummariser(url, os.environ.get("CONTENT_LLM_MODEL", "default"), os.environ.get("CONTENT_LLM_KEY"))
