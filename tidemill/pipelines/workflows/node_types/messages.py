"""Nodes that notify people: `notification` by a webhook or mail, `discord_send` by Discord's HTTP API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.errors import MessageError
from email.message import EmailMessage
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.core.web.public_url import site_of
from tidemill.engine.outbound_http import OutboundHttpError, fetch
from tidemill.engine.outbound_mail import OutboundMailError, send_mail
from tidemill.pipelines.workflows.expressions.names import excerpt
from tidemill.pipelines.workflows.nodes import credential_of, node_type

PATIENCE = 20.0
DISCORD = "https://discord.com/api/v10"


@node_type("notification")
def notification(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Sends a notice as the credential `notification` says: to a URL, or by mail."""
    held = credential_of({"credentialName": data.get("credentialName") or "notification"}) or {}
    title, message = str(data.get("title") or ""), str(data.get("message") or "")
    if held.get("url"):
        text = f"{title}: {message}" if title else message
        _post(held["url"], {"title": title, "message": message, "text": text}, {})
    elif held.get("server") and held.get("to"):
        refused = _mail(held, title or message[:78], message)
        return {"sent": True, "refused": refused} if refused else {"sent": True}
    else:
        raise ConfigError("a credential for notices has a url, or a server and to for mail")
    return {"sent": True}


@node_type("discord_send")
def discord_send(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Sends a message to a channel of Discord; returns the message."""
    held = credential_of({"credentialName": data.get("credentialName") or "discord"}) or {}
    if not held.get("token"):
        raise ConfigError("the credential for Discord has no token: store the bot's token as its field `token`")
    channel, reply = str(data["channel_id"]), str(data.get("reply_to_id") or "")
    for name, id in (("channel_id", channel), ("reply_to_id", reply)):
        if id and not id.isdigit():
            raise ConfigError(f"{name} is the number of a channel or message, and not {id[:40]!r}")
    if data.get("mode") == "reply" and not reply:
        raise ConfigError("the mode is reply, and there is no reply_to_id")
    body: dict[str, Any] = {"content": str(data.get("message") or data.get("content") or "")}
    if reply:
        body["message_reference"] = {"message_id": reply}
    base = (held.get("url") or DISCORD).rstrip("/")
    return _post(f"{base}/channels/{channel}/messages", body, {"Authorization": f"Bot {held['token']}"})


def _post(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
    sent = {"User-Agent": "tidemill", "Content-Type": "application/json", **headers}
    try:
        # An admin stated the URL with the credential.
        answer = fetch("POST", url, json.dumps(body).encode(), sent, timeout=PATIENCE, stated=True)
    except OutboundHttpError as error:
        raise ConfigError(str(error)) from error
    if answer.status >= 300:
        raise ConfigError(f"{site_of(url)} answered {answer.status}: {excerpt(answer.text(), 200)}")
    try:
        return json.loads(answer.body)
    except ValueError:
        return None


def _mail(held: Mapping[str, str], title: str, message: str) -> list[str]:
    """Send a mail; returns the receivers that were refused."""
    port = str(held.get("port") or 25)
    if not port.isdecimal():
        raise ConfigError(f"the credential's port is a number, and not {port[:40]!r}")
    mail = EmailMessage()
    mail["Subject"] = " ".join(title.split())
    sender, receivers = (
        " ".join(each.split()) for each in (held.get("sender") or f"tidemill@{held['server']}", held["to"])
    )
    try:
        mail["From"], mail["To"] = sender, receivers
    except (LookupError, ValueError, MessageError) as error:
        raise ConfigError(f"the credential's sender and to are addresses: {sender}, {receivers}") from error
    mail.set_content(message)
    tls = str(held.get("tls", "")).lower() in ("1", "true", "yes")
    try:
        return send_mail(
            mail, held["server"], int(port),
            timeout=PATIENCE, tls=tls, username=held.get("username"), password=held.get("password"),
            ca=held.get("ca"),
        )  # fmt: skip
    except OutboundMailError as error:
        raise ConfigError(str(error)) from error
