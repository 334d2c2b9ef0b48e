"""What expressions of a workflow file may read beside the outputs of nodes: credentials and the environment.

A secret stays where it is used: what a run returns or reports is masked, and `$credentials` stands in no field whose
value is kept (`check` refuses that).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from html import escape
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

from tidemill.core.codec import MASK
from tidemill.engine.secrets.credentials import read_credentials
from tidemill.engine.secrets.environment import allowed_env
from tidemill.pipelines.workflows.expressions.javascript import current_names, expressions_in, names_in, naming
from tidemill.pipelines.workflows.nodes import Node, NodeError

#: The credential of a kind of node that names none.
DEFAULT_CREDENTIALS = {"postgres_query": "postgres", "discord_send": "discord", "notification": "notification"}
SHORTEST_MASKED = 4  # characters: a shorter secret would mask ordinary words
#: Fields of credentials that are no secret, such as the name of a host: they stay readable in outputs and errors.
PUBLIC_FIELDS = frozenset(
    ("server", "host", "port", "database", "user", "username", "sender", "to", "header", "tls", "ca")
)


def credential_names(nodes: Iterable[Node]) -> set[str]:
    """The credentials that nodes read."""
    found: set[str] = set()
    for node in nodes:
        if node.data.get("credentialName"):
            found.add(str(node.data["credentialName"]))
        elif node.type in DEFAULT_CREDENTIALS and not (node.data.get("url") or node.data.get("urlVariable")):
            found.add(DEFAULT_CREDENTIALS[node.type])
        texts = [*expressions_in(node.data), *(each for each in node.data.values() if isinstance(each, str))]
        found |= {name for text in texts for name in names_in(text, "credentials") if name is not None}
    return found


@asynccontextmanager
async def with_names(credentials: Collection[str], **names: Any) -> AsyncIterator[dict[str, dict[str, str]]]:
    """Give expressions these credentials and the allowed part of the environment; no error contains a secret."""
    held = await read_credentials(credentials)
    try:
        with naming(**{"$env": allowed_env(), "$credentials": held}, **names):
            yield held
    except NodeError as error:
        raise NodeError(masked(str(error), held)) from (error if not held else None)


def masked(value: Any, credentials: Mapping[str, Mapping[str, str]]) -> Any:
    """A value in which every secret of these credentials is masked, also as it is sent: encoded."""
    secrets = {form for held in credentials.values() for form in _forms(held)}
    if not secrets:
        return value
    longest_first = "|".join(map(re.escape, sorted(secrets, key=len, reverse=True)))
    return _masked(value, re.compile(longest_first, re.IGNORECASE))  # The name of a host, for one, is written small.


def excerpt(text: str, most: int) -> str:
    """The beginning of a text for an error, masked before it is cut: no part of a secret is left at its end."""
    return masked(text.strip(), current_names().get("$credentials") or {})[:most]


def _forms(held: Mapping[str, str]) -> Iterator[str]:
    """The values of a credential as they may come back.

    Plain, in JSON, in Python, in HTML, in an address, in base64, as a basic login.
    """
    user = held.get("username") or held.get("user")
    if user:
        yield _base64(f"{user}:{held.get('password', '')}")
    for text in _secrets(held):
        if len(text) >= SHORTEST_MASKED:
            yield from (text, quote(text, safe=""), quote_plus(text), _base64(text), repr(text)[1:-1])
            yield from (escape(text, quote=is_quoted) for is_quoted in (True, False))
            yield from (json.dumps(text, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))


def _secrets(held: Mapping[str, str]) -> Iterator[str]:
    """The values that are secret, of all fields but public ones; of an address also its password alone."""
    for field, value in held.items():
        if field in PUBLIC_FIELDS:
            continue
        text = str(value)
        yield text
        with suppress(ValueError):  # It may look like an address and be none.
            password = urlsplit(text).password if "://" in text else None
            if password:
                yield from {password, unquote(password)}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _masked(value: Any, secrets: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return secrets.sub(MASK, value)
    if isinstance(value, Mapping):
        return {_masked(key, secrets): _masked(each, secrets) for key, each in value.items()}
    return [_masked(each, secrets) for each in value] if isinstance(value, list | tuple) else value
