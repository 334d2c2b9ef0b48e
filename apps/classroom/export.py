"""Data for researchers: ProgSnap2 and CSV, with pseudonyms for students.

A pseudonym is made with a key: the same key gives the same names, which reveal nothing without it. Names of
students in free text, such as notes and programs, are replaced as well.

ProgSnap2 (version 1.0) is a folder, here in a zip file: `MainTable.csv` has a row per event, `CodeStates.csv` the
programs by their ids, and `DatasetMetadata.csv` says how to read both. Types of events that it does not know begin with
`X-`, as the format demands, and `README.md` explains them. What is not in the log is left blank: the program after an
edit, until it is run, and how a run ended.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import re
import zipfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from apps.classroom.episodes import CODE_EVENTS, RESET_EVENTS, RUN_END, RUN_START
from apps.classroom.labels import label_in
from apps.classroom.score import BUCKETS
from apps.classroom.span import Lived
from apps.classroom.student import STATES, workspace_of
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts
from tidemill.store.monitors.events import read_span
from tidemill.store.monitors.roster import list_roster

VERSION = "1.0"
EVENT_TYPES = {RUN_START: "Run.Program", "loadProject": "Project.Open", RUN_END: "X-Run.End"}
EDIT_TYPES = {"blockCreated": "Insert", "blockDeleted": "Delete", "blockMoved": "Move", "blockChanged": "Replace"}
MAIN = (
    "EventType", "EventID", "SubjectID", "ToolInstances", "CodeStateID", "Order", "ServerTimestamp", "CourseSectionID",
    "ParentEventID", "SessionID", "ProjectID", "CodeStateSection", "EventInitiator", "EditType", "ExecutionID",
    "ExecutionResult", "X-SourceType",
)  # fmt: skip
README = """# A class that programs with blocks

ProgSnap2, version 1.0: one row of MainTable.csv for each event in the log of the programming environment.

- Students, sessions, projects and classes have pseudonyms, the same in all files that were made with one key.
- CodeStates/CodeStates.csv has the workspaces of the runs, as the environment wrote them. CodeStateID is blank where a
  workspace was changed or loaded and has not been run since: the log holds programs only with runs.
- File.Edit is one change of one block: created (Insert), deleted (Delete), moved (Move), or a field set (Replace). A
  workspace is one document, so CodeStateSection is blank.
- Run.Program is the start of a run; ExecutionResult is blank, since the log does not say how a run ended. X-Run.End is
  its end: ParentEventID and ExecutionID are those of the run.
- X-SourceType is the type that the environment gave an event. Other types that begin with X- are that type: the menu
  (menuOpen, menuSelect, menuClose), the playground in which programs run (playgroundOpen and so on; playgroundData is
  what was measured there), and newProject, an empty workspace.
- Order counts all events by ServerTimestamp, which is the time at which the log received them.
"""
MOST_ALERTS = 100_000
MOST_STUDENTS = 100_000


class Pseudonyms:
    """Stable replacements for the names of students, and for everything else that identifies them."""

    def __init__(self, key: str, students: Iterable[str] = ()) -> None:
        self._key = key.encode()
        known = sorted({name for name in students if len(name) > 1}, key=len, reverse=True)
        words = "|".join(re.escape(name) for name in known)
        self._names = re.compile(rf"(?<!\w)(?:{words})(?!\w)") if known else None

    def of(self, student: str, kind: str = "p") -> str:
        """The pseudonym of a student, or with another kind of their session or project."""
        return kind + hmac.new(self._key, f"{kind}/{student}".encode(), hashlib.sha256).hexdigest()[:12]

    def within(self, text: str) -> str:
        """A text without names of students."""
        return text if self._names is None else self._names.sub(lambda found: self.of(found[0]), text)


async def pseudonyms_for(database: Database, key: str, monitor: str = "classroom") -> Pseudonyms:
    """Pseudonyms for all present and past students of a class."""
    rows = await list_roster(database, monitor, inactive=True, limit=MOST_STUDENTS)
    return Pseudonyms(key, [row["entity"] for row in rows])


class _Main(msgspec.Struct, frozen=True):
    """A row of the main table, before the rows are sorted."""

    at: float
    id: str
    columns: dict[str, str]

    @property
    def place(self) -> tuple[float, int, str]:
        return (self.at, len(self.id), self.id)


async def export_progsnap2(
    database: Database, since: float, until: float, names: Pseudonyms, monitor: str = "classroom"
) -> bytes:
    """The events of a span as a zip file with a ProgSnap2 dataset."""
    rows: list[_Main] = []
    programs: dict[str, str] = {}
    state, run, whose = "", "", None
    async for row in read_span(database, monitor, since, until):
        data = msgspec.json.decode(row["data"])
        kind = data.get("eventType")
        if row["entity"] != whose:
            state, run, whose = "", "", row["entity"]
        if kind == RUN_START:
            workspace = names.within(workspace_of(data))
            state, run = hashlib.sha256(workspace.encode()).hexdigest()[:16], row["source_id"]
            programs[state] = workspace
        elif kind in CODE_EVENTS or kind in RESET_EVENTS:
            state = ""
        rows.append(_Main(row["at"], row["source_id"], _columns(row, data, state, run, names)))
    rows.sort(key=lambda row: row.place)
    main = _table(MAIN, ({**row.columns, "Order": str(order)} for order, row in enumerate(rows)))
    codes = _table(("CodeStateID", "Code"), ({"CodeStateID": id, "Code": code} for id, code in programs.items()))
    metadata = {
        "Version": VERSION,
        "IsEventOrderingConsistent": "true",
        "EventOrderScope": "Global",
        "EventOrderScopeColumns": "",
        "CodeStateRepresentation": "Table",
    }
    about = _table(("Property", "Value"), ({"Property": name, "Value": value} for name, value in metadata.items()))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (
            ("README.md", README), ("DatasetMetadata.csv", about), ("MainTable.csv", main),
            ("CodeStates/CodeStates.csv", codes),
        ):  # fmt: skip
            archive.writestr(name, text)
    return out.getvalue()


def _columns(row: Any, data: dict[str, Any], state: str, run: str, names: Pseudonyms) -> dict[str, str]:
    kind = str(data.get("eventType", ""))
    student = row["entity"]
    message = _message(data)
    project, session, section = data.get("project"), message.get("sessionID"), data.get("classCode")
    return {
        "EventType": "File.Edit" if kind in CODE_EVENTS else EVENT_TYPES.get(kind, f"X-{kind}"),
        "EventID": row["source_id"],
        "SubjectID": names.of(student),
        "ToolInstances": "Blockly",
        "CodeStateID": state,
        "ServerTimestamp": _moment(row["at"]),
        "CourseSectionID": names.of(str(section), "c") if section else "",
        "ParentEventID": run if kind == RUN_END else "",
        "SessionID": names.of(str(session), "s") if session else "",
        "ProjectID": names.of(str(project), "w") if project else "",
        "EventInitiator": "UserDirectAction" if kind in CODE_EVENTS else "",
        "EditType": EDIT_TYPES.get(kind, ""),
        "ExecutionID": run if kind in (RUN_START, RUN_END) else "",
        "X-SourceType": kind,
    }


def _message(data: dict[str, Any]) -> dict[str, Any]:
    try:
        read = msgspec.json.decode(data.get("raw_message") or "{}")
    except (msgspec.DecodeError, TypeError):
        return {}
    return read if isinstance(read, dict) else {}


# -- plain tables ---------------------------------------------------------------------------------


def runs_csv(lives: Sequence[Lived], names: Pseudonyms) -> str:
    """The runs of a span: change scores, buckets, states."""
    columns = ("student", "run", "at", "change", "bucket", "state", "glass_box")
    return _table(
        columns,
        (
            {
                "student": names.of(life.student),
                "run": run.id,
                "at": _moment(run.at),
                "change": f"{run.change:.6f}",
                "bucket": BUCKETS[run.bucket],
                "state": STATES[run.state],
                "glass_box": STATES[glass],
            }
            for life in lives
            for run, glass in zip(life.runs, life.glass, strict=True)
        ),
    )


async def alerts_csv(
    database: Database, since: float, until: float, names: Pseudonyms, monitor: str = "classroom"
) -> str:
    """The alerts of a span, with their notes."""
    columns = ("alert", "student", "trigger", "started", "opened", "resolved", "acknowledged", "label", "note")
    found = await list_alerts(database, monitor, since=datetime.fromtimestamp(since, UTC), limit=MOST_ALERTS)
    return _table(
        columns,
        (
            {
                "alert": str(row["id"]),
                "student": names.of(row["entity"]),
                "trigger": row["trigger"],
                **{
                    column: "" if row[name] is None else _moment(row[name].timestamp())
                    for column, name in (
                        ("started", "started_at"), ("opened", "opened_at"), ("resolved", "resolved_at"),
                        ("acknowledged", "acked_at"),
                    )
                },
                "label": {True: "right", False: "wrong", None: ""}[label_in(row["note"])],
                "note": names.within(row["note"] or ""),
            }
            for row in sorted(found, key=lambda row: row["id"])
            if row["opened_at"].timestamp() < until
        ),
    )  # fmt: skip


async def events_csv(
    database: Database, since: float, until: float, names: Pseudonyms, monitor: str = "classroom"
) -> str:
    """The events of a span, one a line, in the order in which they happened."""
    rows = [
        (row["at"], row["source_id"], row["entity"], str(msgspec.json.decode(row["data"]).get("eventType", "")))
        async for row in read_span(database, monitor, since, until)
    ]
    return _table(
        ("event", "student", "at", "type"),
        (
            {"event": id, "student": names.of(student), "at": _moment(at), "type": kind}
            for at, id, student, kind in sorted(rows, key=lambda row: (row[0], len(row[1]), row[1]))
        ),
    )


def _table(columns: Sequence[str], rows: Iterable[dict[str, str]]) -> str:
    out = io.StringIO()
    table = csv.DictWriter(out, columns, lineterminator="\n")
    table.writeheader()
    table.writerows({name: safe_cell(text) for name, text in row.items()} for row in rows)
    return out.getvalue()


def safe_cell(text: str) -> str:
    """A text that no spreadsheet evaluates as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not text[1:].isdecimal() else text


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
