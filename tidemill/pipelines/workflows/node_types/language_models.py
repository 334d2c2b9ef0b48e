"""Nodes that call a language model: `llm`, and under the names of other products `claude_agent` and `claude_json`."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows.llm import ask
from tidemill.pipelines.workflows.nodes import node_type, number_of

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```", re.DOTALL)


@node_type("llm", expands=True)
async def llm(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Calls a language model: `response` is its answer; with `json`, the value in it."""
    text = await _ask(data, limit=_limit(data, "maxTokens" if data.get("maxTokens") else "max_tokens", 2000))
    if data.get("json"):
        return _parsed(text)
    return {"response": text, "content": text}


@node_type("claude_agent")
async def claude_agent(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Calls a language model, without tools: `response` is its answer."""
    return {"response": await _ask(data, limit=4096), "conversation_id": uuid.uuid4().hex}


@node_type("claude_json", expands=True)
async def claude_json(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Calls a language model that answers in JSON; each entry of a list is an item."""
    return _parsed(await _ask(data, limit=_limit(data, "max_tokens", 4096)))


def _parsed(text: str) -> Any:
    """The JSON of an answer, also of one that explains it around a fenced block."""
    fenced = _FENCED.search(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except ValueError as error:
        raise ConfigError(f"the model's answer is not JSON: {error}: {text[:200]!r}") from error


def _limit(data: dict[str, Any], field: str, default: int) -> int:
    return int(number_of(data, field, default))


async def _ask(data: dict[str, Any], *, limit: int) -> str:
    return await asyncio.to_thread(
        ask,
        str(data["prompt"]),
        model=data.get("model") or None,
        system=data.get("system") or data.get("system_prompt") or None,
        limit=limit,
    )
