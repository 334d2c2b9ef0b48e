"""Calls a language model over HTTP: Anthropic's, or any with an OpenAI-compatible API.

ANTHROPIC_API_KEY                   uses Anthropic
OPENAI_API_KEY, OPENAI_BASE_URL     uses OpenAI, or a compatible server
TIDEMILL_LLM_MODEL                  the default model
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from tidemill.core.errors import TidemillError
from tidemill.engine.outbound_http import OutboundHttpError, fetch

PATIENCE = 120.0


class ModelCallError(TidemillError):
    """The language model cannot be called, or returns no answer."""


def is_configured() -> bool:
    """Whether a language model is configured."""
    return bool(os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("OPENAI_API_KEY"))


def ask(prompt: str, *, model: str | None = None, system: str | None = None, limit: int = 2000) -> str:
    """The model's answer to a prompt."""
    wanted = model or os.environ.get("TIDEMILL_LLM_MODEL")
    if key := os.environ.get("ANTHROPIC_API_KEY"):
        base = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
        body: dict[str, Any] = {
            "model": wanted or "claude-sonnet-4-5",
            "max_tokens": limit,
            "messages": [{"role": "user", "content": prompt}],
        }
        if system:
            body["system"] = system
        answer = _post(f"{base}/v1/messages", body, {"x-api-key": key, "anthropic-version": "2023-06-01"})
        return _whole(*_read(answer, _read_anthropic), limit)
    if key := os.environ.get("OPENAI_API_KEY"):
        base = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1").rstrip("/")
        messages = [{"role": "system", "content": system}] if system else []
        body = {
            "model": wanted or "gpt-4o-mini",
            "max_tokens": limit,
            "messages": [*messages, {"role": "user", "content": prompt}],
        }
        answer = _post(f"{base}/chat/completions", body, {"authorization": f"Bearer {key}"})
        return _whole(*_read(answer, _read_openai), limit)
    raise ModelCallError("no language model is configured: set ANTHROPIC_API_KEY or OPENAI_API_KEY")


def _read_anthropic(answer: Any) -> tuple[Any, Any]:
    return "".join(part.get("text", "") for part in answer.get("content", [])), answer.get("stop_reason")


def _read_openai(answer: Any) -> tuple[Any, Any]:
    choice = (answer.get("choices") or [{}])[0]
    return choice.get("message", {}).get("content"), choice.get("finish_reason")


def _read(answer: Any, read: Callable[[Any], tuple[Any, Any]]) -> tuple[str | None, str | None]:
    """The text of an answer, and why it ended."""
    try:
        text, ended = read(answer)
        if isinstance(text, str | None):
            return text, ended
    except (AttributeError, LookupError, TypeError):
        pass
    raise ModelCallError(f"the language model answers in a form that is not understood: {json.dumps(answer)[:300]}")


def _whole(text: str | None, ended: str | None, limit: int) -> str:
    """The answer, unless it was cut off, withheld or is empty."""
    if ended in ("max_tokens", "length", "model_context_window_exceeded"):
        raise ModelCallError(
            f"the answer was cut off after {limit} tokens, at {(text or '')[-60:]!r}: allow more, or ask for less"
        )
    if ended in ("refusal", "content_filter"):
        raise ModelCallError(f"the language model withholds its answer ({ended}): change the prompt")
    if not (text or "").strip():
        raise ModelCallError(f"the language model returned an empty answer ({ended or 'without a reason'})")
    return str(text)


def _post(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    sent = {"content-type": "application/json", **headers}
    try:
        answer = fetch("POST", url, json.dumps(body).encode(), sent, timeout=PATIENCE, stated=True)
        if answer.status != 200:
            raise ModelCallError(f"the language model rejected the request ({answer.status}): {answer.text(300)}")
        return json.loads(answer.body)
    except (OutboundHttpError, ValueError) as error:
        raise ModelCallError(f"the language model does not answer: {error}") from error
