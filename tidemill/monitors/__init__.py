"""Monitors: follow the events of every entity, infer its state, and tell the right person.

from tidemill.monitors import HttpCursorSource, Monitor, momentary, sustained
"""

from tidemill.monitors.definition.channels import Command, Email, Slack, Webhook
from tidemill.monitors.definition.event import Event
from tidemill.monitors.definition.hours import Hours
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.definition.triggers import absent, momentary, sustained
from tidemill.monitors.reducer.state import Bag
from tidemill.monitors.sources.base import Incoming, Page, Parted, Source, SourceError
from tidemill.monitors.sources.http import HttpCursorSource
from tidemill.monitors.sources.jsonl import JsonlSource
from tidemill.monitors.sources.kafka import KafkaSource
from tidemill.monitors.sources.postgres import PostgresSource
from tidemill.monitors.sources.stream import StreamSource

__all__ = [
    "Bag",
    "Command",
    "Email",
    "Event",
    "Hours",
    "HttpCursorSource",
    "Incoming",
    "JsonlSource",
    "KafkaSource",
    "Monitor",
    "Page",
    "Parted",
    "PostgresSource",
    "Slack",
    "Source",
    "SourceError",
    "StreamSource",
    "Webhook",
    "absent",
    "momentary",
    "sustained",
]
