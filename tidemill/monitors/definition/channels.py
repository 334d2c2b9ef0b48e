"""Channels for notices of alerts: a webhook, mail, a Slack-compatible webhook, PagerDuty, a command, or your own.

Monitor(..., notify=[
    Webhook("https://host/alerts", secret="..."),
    Email("ops@example.org", server="mail.example.org", sender="tidemill@example.org", digest="10m"),
    Slack("https://hooks.example.org/T0/B0"),
    Command(["notify-send", "{title}"], severities=("critical",)),
    PagerDuty(routing_key="...", after="10m"),  # unless the alert is acknowledged by then
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

from tidemill.core.check_given import check_function
from tidemill.core.duration import Duration, format_duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import check_name
from tidemill.core.web.public_url import check_http_url

Group = tuple[str, ...]


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every channel.

    name          its name in stored notices; by default the kind of channel
    after         escalation: send only if the alert is still open and not acknowledged after this time
    digest        collect notices for this long and send them as one message
    group_by      send one message for each of these within a batch: "trigger", "entity", "severity"
    resolved      send a notice also when an alert is resolved
    severities    only alerts of these severities; all by default
    triggers      only triggers whose names match one of these patterns
    timeout       a message that is not sent within this time has failed, and is sent again
    """

    name: str = ""
    after: Duration = 0
    digest: Duration = 0
    group_by: Group = ()
    resolved: bool = False
    severities: Group = ()
    triggers: Group = ("*",)
    timeout: Duration = "30s"

    def __post_init__(self) -> None:
        check_name("channel", self.name or type(self).__name__)
        if wrong := set(self.group_by) - {"trigger", "entity", "severity"}:
            raise ConfigError(f"group_by {min(wrong)!r} is not one of trigger, entity, severity")
        parse_duration(self.digest, what="digest")
        parse_duration(self.after, what="after")
        parse_duration(self.timeout, what="timeout")

    def wants(self, trigger: str, severity: str) -> bool:
        """Whether this channel receives such alerts."""
        if self.severities and severity not in self.severities:
            return False
        return any(fnmatchcase(trigger, pattern) for pattern in self.triggers)

    @property
    def is_escalation(self) -> bool:
        return parse_duration(self.after, what="after") > 0

    def batch(self, alert: Mapping[str, str], at: float, tick: int, *, over: bool = False) -> tuple[str, float | None]:
        """The batch of a notice, and when it is sent; None for now. The end of an alert is not escalated."""
        group = "/".join(alert[part] for part in self.group_by)
        gathering = parse_duration(self.digest, what="digest")
        after = 0.0 if over else parse_duration(self.after, what="after")
        if not gathering:
            return (f"e{tick}/{group}", at + after) if after else (f"t{tick}/{group}", None)
        window = int((at + after) // gathering)
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


class PagerDuty(Channel, frozen=True, kw_only=True):
    """Sends events to PagerDuty: one incident for each alert, which is resolved with it."""

    routing_key: str
    url: str = "https://events.pagerduty.com/v2/enqueue"
    timeout: Duration = "10s"
    resolved: bool = True

    def __post_init__(self) -> None:
        check_http_url(self.url)
        super().__post_init__()

    def events(self, notice: Notice) -> list[dict[str, Any]]:
        """The events of a notice, one for each alert."""
        return [
            {
                "routing_key": self.routing_key,
                "event_action": "resolve" if alert.what == "resolved" else "trigger",
                "dedup_key": f"tidemill/{alert.monitor}/{alert.alert}",
                "payload": {
                    "summary": alert.sentence()[:1024],
                    "source": alert.entity,
                    "severity": alert.severity,
                    "timestamp": datetime.fromtimestamp(alert.started_at, UTC).isoformat(),
                    "class": alert.trigger,
                    "group": alert.monitor,
                    "custom_details": msgspec.to_builtins(alert),
                },
            }
            for alert in notice.alerts
        ]


class Email(Channel, frozen=True, kw_only=True):
    """Sends mail through an SMTP server."""

    to: str | Sequence[str]
    sender: str
    server: str = "localhost"
    port: int = 25
    username: str | None = None
    password: str | None = None
    tls: bool = False
    """Encrypt the connection: by STARTTLS, or on port 465 from its start."""
    ca: str | None = None
    """Certificates to trust beside those of the host: as PEM, or the path of a file with them."""
    timeout: Duration = "20s"


class Command(Channel, frozen=True, kw_only=True):
    """Runs a program with the message as JSON on its standard input; {title} and {id} are filled in."""

    argv: Sequence[str]


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
    return {channel_name(channel): channel for channel in channels}


def check_channel(where: str, channel: Channel) -> None:
    """Raise a `ConfigError` for a channel of a program's own that could not be sent to."""
    if isinstance(channel, Webhook | Slack | PagerDuty | Email | Command):
        return
    what = f"{where}: channel {channel_name(channel)}"
    if (send := getattr(channel, "send", None)) is None:
        raise ConfigError(f"{what} cannot be sent to: give it a method send(self, notice)")
    check_function(what, send, "notice", plain=False)


def channel_name(channel: Channel) -> str:
    """The name of a channel, by default its kind."""
    return channel.name or type(channel).__name__.lower()
