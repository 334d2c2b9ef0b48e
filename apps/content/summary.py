"""Summaries: the most typical sentence, or the text of a language model if one is configured."""

from __future__ import annotations

import re
from typing import Protocol

import numpy as np

from apps.content.embedding import StaticModel
from apps.content.llm import Chat, configured

LONGEST = 200
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
            return text.strip()[:LONGEST]
        vectors = self._model.encode([text, *sentences])
        return sentences[int(np.argmax(vectors[1:] @ vectors[0]))][:LONGEST]


class LlmSummariser:
    """A summary by a language model."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def summarise(self, text: str) -> str:
        question = f"Say in one short sentence what this post is about:\n\n{text}"
        return self._chat.ask(question, most_tokens=60)[:LONGEST]


def summariser(model: StaticModel) -> Summariser:
    """The one that is configured."""
    chat = configured("summaries")
    return LocalSummariser(model) if chat is None else LlmSummariser(chat)
