"""Monitors: follow the events of every entity, infer its state, and notify the right person.

from tidemill.monitors import Monitor, momentary, sustained
from tidemill.sources import HttpSource
"""

from tidemill.monitors.definition.channels import Channel, Command, Email, Notice, PagerDuty, Slack, Webhook
from tidemill.monitors.definition.event import Event
from tidemill.monitors.definition.hours import Hours
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.definition.triggers import absent, momentary, sustained
from tidemill.monitors.engine_alerts import engine_alerts
from tidemill.monitors.reducer.state import AttributeDict

__all__ = [
    "AttributeDict",
    "Channel",
    "Command",
    "Email",
    "Event",
    "Hours",
    "Monitor",
    "Notice",
    "PagerDuty",
    "Slack",
    "Webhook",
    "absent",
    "engine_alerts",
    "momentary",
    "sustained",
]
