"""How likely a post is of each kind: by the local classifiers, or by a language model if one is configured."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import numpy as np

from apps.content.classifiers import Classifiers
from apps.content.llm import Chat, configured

Embed = Callable[[str], Awaitable[np.ndarray]]

QUESTION = """How likely is this post to be of each of these kinds: {labels}?
Answer with nothing but a JSON object that gives each of them a number from 0 to 1.

{text}"""


class Judge(Protocol):
    async def score(self, text: str) -> dict[str, float]:
        """How likely each label is."""
        ...


class LocalJudge:
    """Small classifiers on the post's embedding."""

    def __init__(self, embed: Embed, classifiers: Classifiers) -> None:
        self._embed, self._classifiers = embed, classifiers

    async def score(self, text: str) -> dict[str, float]:
        return self._classifiers.score((await self._embed(text))[None, :])[0]


class LlmJudge:
    """A language model's opinion."""

    def __init__(self, chat: Chat, labels: tuple[str, ...]) -> None:
        self._chat, self._labels = chat, labels

    async def score(self, text: str) -> dict[str, float]:
        question = QUESTION.format(labels=", ".join(self._labels), text=text)
        return read_scores(await asyncio.to_thread(self._chat.ask, question, most_tokens=200), self._labels)


def read_scores(answer: str, labels: tuple[str, ...]) -> dict[str, float]:
    """The scores in an answer, which may have text around the JSON; a `ValueError` says what is wrong."""
    body = answer[answer.find("{") : answer.rfind("}") + 1]
    try:
        said = msgspec.json.decode(body, type=dict[str, float])
    except msgspec.DecodeError as error:
        raise ValueError(f"the language model did not answer with scores: {answer[:100]!r}") from error
    if missing := [label for label in labels if label not in said]:
        raise ValueError(f"the language model left out {', '.join(missing)}")
    return {label: round(min(1.0, max(0.0, said[label])), 4) for label in labels}


def judge(embed: Embed, classifiers: Classifiers) -> Judge:
    """The one that is configured."""
    chat = configured("judgements")
    return LocalJudge(embed, classifiers) if chat is None else LlmJudge(chat, classifiers.labels)
