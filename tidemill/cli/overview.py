"""The page of `tidemill --help`: a line about each command, shown without loading any of them, nor the command line."""

from __future__ import annotations

import shutil
import textwrap

from tidemill.cli.summaries import SUMMARIES

ABOUT = "Work on PostgreSQL: jobs, flows, dags, streams, pipelines, monitors. Start with `tidemill new shop`."

#: What can be typed, by heading, and where it is. A command's module is loaded when the command is given.
COMMANDS = {
    "Run": (
        "run.new:new",
        "run.dev:dev",
        "run.up:up",
        "run.roles:worker",
        "run.roles:maintenance",
        "run.server:server",
    ),
    "Jobs": (
        "jobs.enqueue:enqueue",
        "jobs.list:jobs",
        "jobs.list:job",
        "jobs.cancel_retry:retry",
        "jobs.cancel_retry:cancel",
        "jobs.batches:commands batch",
    ),
    "Workflows": (
        "runs.start:start",
        "runs.migrate:commands runs",
        "runs.list:run",
        "runs.send_fork:send",
        "runs.send_fork:fork",
        "runs.inputs:inputs",
        "runs.inputs:submit",
        "dags.commands:commands dag",
        "monitors.commands:commands monitor",
        "pipelines.commands:commands pipeline",
        "pipelines.workflow_files:commands workflow",
        "streams.commands:commands stream",
    ),
    "Operate": (
        "explain:explain",
        "admin.top:top",
        "jobs.workers:commands workers",
        "jobs.queues:commands queues",
        "admin.history:history",
        "jobs.schedules:commands schedules",
        "admin.values:value",
        "admin.audit:audit",
        "admin.forget:forget",
        "admin.tokens:token",
        "admin.credentials:commands credentials",
        "admin.sessions:session",
        "admin.db:commands db",
        "admin.deploy:commands deploy",
        "admin.config:config",
    ),
}

#: Ask for this page.
HELP = ([], ["--help"], ["-h"])


def command_name(place: str) -> str:
    """What is typed for a command in the table."""
    where, _, name = place.partition(" ")
    return name or where.partition(":")[2]


def overview() -> str:
    """The page, as wide as the terminal."""
    wide = max(40, shutil.get_terminal_size((100, 24)).columns)
    named = {title: [command_name(place) for place in places] for title, places in COMMANDS.items()}
    margin = max(len(name) for names in named.values() for name in names) + 4
    lines = ["Usage: tidemill COMMAND", "", *textwrap.wrap(ABOUT, wide)]
    options = {"--help, -h": "Show this page; after a command, what it takes.", "--version": "Show the version."}
    sections = {title: {name: SUMMARIES[name] for name in names} for title, names in named.items()}
    for title, commands in {**sections, "Options": options}.items():
        lines += ["", title]
        for name, summary in commands.items():
            first, *rest = textwrap.wrap(summary, wide - margin)
            lines += [f"  {name:{margin - 2}}{first}", *(" " * margin + each for each in rest)]
    return "\n".join(lines)
