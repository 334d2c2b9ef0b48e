"""Nodes that send HTTP requests: `http` and `rss`."""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tidemill.core.errors import ConfigError
from tidemill.core.web.public_url import site_of
from tidemill.engine.outbound_http import HttpAnswer, OutboundHttpError, RefusedAddressError, fetch
from tidemill.pipelines.workflows.expressions.javascript import fill, shown
from tidemill.pipelines.workflows.expressions.names import excerpt
from tidemill.pipelines.workflows.node_types.values import fill_json, pairs
from tidemill.pipelines.workflows.nodes import choice_of, credential_of, node_type, number_of

PATIENCE = 30.0
_FORM = "application/x-www-form-urlencoded"
_DECLARED = re.compile(rb"\s*<\?xml[^>]*?encoding=[\"']([\w.:-]+)")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
BODY_MODES = ("none", "json", "fields")


@node_type("http", raw=("json_body",))
def http(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Sends an HTTP request; `error` says why it failed, if it did."""
    url, method = str(data["url"]), choice_of(data, "method", METHODS) or "GET"
    headers = {"User-Agent": "tidemill", **_authorization(data)}
    headers |= {name: shown(value) for name, value in pairs(data.get("headers"), "headers").items()}
    if broken := next((name for name, value in headers.items() if re.search(r"[\r\n\0]", name + value)), None):
        raise ConfigError(f"field 'headers': {broken.split()[0]} has a line break, which no header can hold")
    body = _body(data, item, headers)
    timeout = number_of(data, "timeout", PATIENCE)
    made: dict[str, Any] = {"status": None, "statusText": "", "headers": {}, "body": None, "url": url}
    try:
        answer = fetch(method, url, body, headers, timeout=timeout)
    except RefusedAddressError as error:
        raise ConfigError(str(error)) from error
    except OutboundHttpError as error:
        return _failed({**made, "error": str(error)}, data)
    made |= {"status": answer.status, "statusText": answer.reason, "headers": answer.headers, "body": _content(answer)}
    if answer.status >= 300:
        return _failed({**made, "error": _refusal(url, answer)}, data)
    return made


def _refusal(url: str, answer: HttpAnswer) -> str:
    return f"{site_of(url)} answered {answer.status}: {excerpt(answer.text(), 200)}"


def _failed(made: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """A failed request as an output; an error where no node reads it, and a state would be made of it."""
    if not data.get("mayFail"):
        raise ConfigError(made["error"])
    return made


@node_type("rss", expands=True)
def rss(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Reads the entries of a feed, each as an item."""
    url = str(data["url"])
    try:
        answer = fetch("GET", url, None, {"User-Agent": "tidemill", **_authorization(data)}, timeout=PATIENCE)
    except OutboundHttpError as error:
        raise ConfigError(str(error)) from error
    if answer.status >= 300:
        raise ConfigError(_refusal(url, answer))
    declared = _DECLARED.match(answer.body)
    text = answer.decoded(declared[1].decode() if declared else "utf-8").strip()
    if "<!ENTITY" in text:
        raise ConfigError("the feed declares entities: it is rejected as unsafe")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - safe without entities
    except ElementTree.ParseError as error:
        raise ConfigError(f"{site_of(url)} answered with something that is not a feed: {error}") from error
    return [_entry(each) for each in root.iter() if each.tag.rpartition("}")[2] in ("item", "entry")]


def _entry(entry: ElementTree.Element) -> dict[str, str]:
    """The fields of an entry. The feed's own come before those of extensions, such as `itunes:title`."""
    made: dict[str, str] = {}
    space = entry.tag.rpartition("}")[0]
    for child in sorted(
        entry, key=lambda each: (each.get("rel", "alternate") != "alternate", each.tag.rpartition("}")[0] != space)
    ):
        name = child.tag.rpartition("}")[2]
        text = "".join(child.itertext()).strip() if name == "content" else (child.text or "").strip()
        inner = next((each.text for each in child if each.text), "")  # The name of an author.
        made[name] = made.get(name) or text or child.get("href") or child.get("url") or inner.strip()
    return made


def _body(data: Mapping[str, Any], item: Mapping[str, Any], headers: dict[str, str]) -> bytes | None:
    mode = choice_of(data, "body_mode", BODY_MODES) or (
        "json" if data.get("json_body") else "fields" if data.get("body_fields") else None
    )
    if mode is None:
        body = data.get("body")
        return None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    if mode == "none":
        return None
    kind = next(
        (value.partition(";")[0].strip() for name, value in headers.items() if name.lower() == "content-type"), None
    )
    if kind is None:
        headers["Content-Type"] = "application/json"
    if mode == "fields":
        fields = pairs(data.get("body_fields"), "body_fields")
        return (
            urlencode({name: shown(value) for name, value in fields.items()}) if kind == _FORM else json.dumps(fields)
        ).encode()
    given = data.get("json_body")
    return json.dumps(
        fill_json(given, item) if isinstance(given, str) and given.strip() else fill(given, item)
    ).encode()


def _authorization(data: Mapping[str, Any]) -> dict[str, str]:
    """The header that a credential stands for: a token, a user with a password, or a header with its value."""
    held = credential_of(data)
    if held is None:
        return {}
    if held.get("header"):
        return {held["header"]: held.get("value", "")}
    if held.get("token"):
        return {"Authorization": f"Bearer {held['token']}"}
    user = held.get("username") or held.get("user")
    if user:
        pair = f"{user}:{held.get('password', '')}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    raise ConfigError(
        f"credential {data['credentialName']!r} has no token, no username and no header, which an HTTP request needs"
    )


def _content(answer: HttpAnswer) -> Any:
    text = answer.decoded()
    try:
        return json.loads(text)
    except ValueError:
        return text
