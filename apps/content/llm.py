"""A language model behind HTTP, where one is configured.

CONTENT_LLM_URL   an endpoint that speaks the chat completions protocol
CONTENT_LLM_MODEL which of its models
CONTENT_LLM_KEY   the key, if it wants one
CONTENT_LLM_FOR   what it does in place of the local models: summaries (usual), judgements, or both with a comma
"""

from __future__ import annotations

import os
import urllib.request

import msgspec

from tidemill.core.errors import ConfigError

USES = ("summaries", "judgements")
TIMEOUT = 20.0


class _Message(msgspec.Struct):
    content: str


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class Chat:
    """One question, one answer. Blocks: call it in a thread."""

    def __init__(self, url: str, model: str, key: str | None) -> None:
        self._url, self._model, self._key = url, model, key

    def ask(self, question: str, *, most_tokens: int) -> str:
        asked = {
            "model": self._model,
            "max_tokens": most_tokens,
            "messages": [{"role": "user", "content": question}],
        }
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self._key}"} if self._key else {})
        request = urllib.request.Request(self._url, msgspec.json.encode(asked), headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310 - the operator's own address
            choices = msgspec.json.decode(answer.read(), type=_Answer).choices
        if not choices:
            raise ValueError("the language model gave no answer")
        return choices[0].message.content.strip()


def configured(use: str) -> Chat | None:
    """The language model for this use; None where the local models do it."""
    url = os.environ.get("CONTENT_LLM_URL")
    wanted = {each.strip() for each in os.environ.get("CONTENT_LLM_FOR", "summaries").split(",")}
    if unknown := wanted - set(USES):
        raise ConfigError(f"CONTENT_LLM_FOR: {', '.join(sorted(unknown))} is not one of {', '.join(USES)}")
    if url is None or use not in wanted:
        return None
    return Chat(url, os.environ.get("CONTENT_LLM_MODEL", "default"), os.environ.get("CONTENT_LLM_KEY"))
