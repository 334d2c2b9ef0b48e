"""Channels for notices of alerts: a webhook, mail, a Slack-compatible webhook, or a command.

Monitor(..., notify=[
    Webhook("https://host/alerts", secret="..."),
    Email("ops@example.org", server="mail.example.org", sender="tidemill@example.org", digest="10m"),
    Slack("https://hooks.example.org/T0/B0"),
    Command(["notify-send", "{title}"], severities=("critical",)),
])

Notices are stored with the alert and sent by a job, which retries until they are received. Every message has an id that
is the same each time it is sent, so that a receiver can drop repetitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from tidemill.core.duration import Duration, format_duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.job import check_name
from tidemill.core.web.public_url import check_http_url

Group = tuple[str, ...]


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every channel.

    name          its name in stored notices; by default the kind of channel
    digest        collect notices for this long and send them as one message
    group_by      send one message for each of these within a batch: "trigger", "entity", "severity"
    resolved      send a notice also when an alert is resolved
    severities    only alerts of these severities; all by default
    triggers      only triggers whose names match one of these patterns
    """

    name: str = ""
    digest: Duration = 0
    group_by: Group = ()
    resolved: bool = False
    severities: Group = ()
    triggers: Group = ("*",)

    def __post_init__(self) -> None:
        check_name("channel", self.name or type(self).__name__)
        if wrong := set(self.group_by) - {"trigger", "entity", "severity"}:
            raise ConfigError(f"group_by {min(wrong)!r} is not one of trigger, entity, severity")
        parse_duration(self.digest, what="digest")

    def wants(self, trigger: str, severity: str) -> bool:
        """Whether this channel receives such alerts."""
        if self.severities and severity not in self.severities:
            return False
        return any(fnmatchcase(trigger, pattern) for pattern in self.triggers)

    def batch(self, alert: Mapping[str, str], at: float, tick: int) -> tuple[str, float | None]:
        """The batch of a notice, and when it is sent; None for now."""
        group = "/".join(alert[part] for part in self.group_by)
        gathering = parse_duration(self.digest, what="digest")
        if not gathering:
            return f"t{tick}/{group}", None
        window = int(at // gathering)
        return f"d{window}/{group}", (window + 1) * gathering


class Webhook(Channel, frozen=True, kw_only=True):
    """Posts JSON. With a secret, `Tidemill-Signature: t=SECONDS,v1=HMAC-SHA256 of "SECONDS.BODY"` proves the sender."""

    url: str
    secret: str | None = None
    timeout: Duration = "10s"

    def __post_init__(self) -> None:
        check_http_url(self.url)
        super().__post_init__()


class Slack(Channel, frozen=True, kw_only=True):
    """Posts text to an incoming webhook of Slack or a compatible service."""

    url: str
    timeout: Duration = "10s"

    def __post_init__(self) -> None:
        check_http_url(self.url)
        super().__post_init__()


class Email(Channel, frozen=True, kw_only=True):
    """Sends mail through an SMTP server."""

    to: str | Sequence[str]
    sender: str
    server: str = "localhost"
    port: int = 25
    username: str | None = None
    password: str | None = None
    tls: bool = False
    timeout: Duration = "20s"


class Command(Channel, frozen=True, kw_only=True):
    """Runs a program with the message as JSON on its standard input; {title} and {id} are filled in."""

    argv: Sequence[str]
    timeout: Duration = "30s"


class AlertFacts(msgspec.Struct, kw_only=True):
    """What is known of an alert wherever it is used."""

    monitor: str
    trigger: str
    entity: str
    kind: str
    severity: str
    started_at: float
    opened_at: float
    resolved_at: float | None = None
    owner: str | None = None
    key: str | None = None


class NotifiedAlert(AlertFacts, kw_only=True):
    """One alert in a message; `what` happened to it."""

    alert: int
    what: str
    note: str | None = None

    def sentence(self) -> str:
        """The alert for people."""
        if self.what == "resolved":
            return f"{self.entity}: {self.trigger} is over"
        since = datetime.fromtimestamp(self.started_at, UTC).strftime("%H:%M:%S UTC")
        again = " again" if self.what == "again" else ""
        lasted = (
            "" if self.kind == "momentary" else f", for {format_duration(max(0, self.opened_at - self.started_at))}"
        )
        return f"{self.entity}: {self.trigger}{again} ({self.severity}) since {since}{lasted}"


class Notice(msgspec.Struct, frozen=True):
    """One message, with an id that stays the same however often it is sent."""

    id: str
    monitor: str
    channel: str
    alerts: tuple[NotifiedAlert, ...]

    @property
    def title(self) -> str:
        first = self.alerts[0].sentence()
        return first if len(self.alerts) == 1 else f"{len(self.alerts)} alerts of {self.monitor}: {first} …"

    @property
    def text(self) -> str:
        return "\n".join(alert.sentence() for alert in self.alerts)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "monitor": self.monitor,
            "title": self.title,
            "alerts": [{**msgspec.to_builtins(alert), "says": alert.sentence()} for alert in self.alerts],
        }


def named(channels: Iterable[Channel]) -> dict[str, Channel]:
    """Channels by their names in stored notices."""
    return {channel.name or type(channel).__name__.lower(): channel for channel in channels}
