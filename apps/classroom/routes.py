"""The page's own addresses, under `/pages/classroom/api/`, and the page itself."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
from litestar import MediaType, Request, Response, Router, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter, SkipValidation
from litestar.response import Stream

from apps.classroom import claims
from apps.classroom.blocks import Profile
from apps.classroom.board import Line, line_of
from apps.classroom.export import alerts_csv, events_csv, export_progsnap2, pseudonyms_for, runs_csv
from apps.classroom.labels import Precision, labelled
from apps.classroom.ranking import Claim
from apps.classroom.research import Day, Profiles, Study, check_span
from apps.classroom.room import MOST_WATCHING, Room
from apps.classroom.score import BIG_REWRITE, REWRITE_FROM
from apps.classroom.span import Sweep, sweep
from apps.classroom.timeline import Story, tell_story
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.web.page import Page
from tidemill.monitors import Monitor
from tidemill.server.problems import Refused
from tidemill.server.server_state import ServerState, TheServerState, caller_of
from tidemill.store.monitors.alerts import ack_alerts, list_alerts, note_alert, show_alert
from tidemill.store.monitors.roster import switch_trigger
from tidemill.store.transaction import transaction

FOLDER = Path(__file__).with_name("page")
MOST_IDS = 500
MOST_TEXT = 4000
STORY = 3 * 3600.0

Asked = Request[Any, Any, Any]
Name = Annotated[str, QueryParameter(min_length=1, max_length=400)]
Moment = Annotated[float | None, QueryParameter(ge=0, le=1e11)]


class Names(TypedDict):
    """The teacher who acts."""

    by: str
    said: str


class Lesson(msgspec.Struct, frozen=True):
    """What the page's handlers work with."""

    watch: Monitor
    room: Room
    study: Study
    profile: Profile
    key: str
    lasting_key: bool
    """Whether pseudonyms are the same after the server was started again."""


TheLesson = NamedDependency[SkipValidation[Lesson]]


# -- for teachers ---------------------------------------------------------------------------------


class Going(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A claim: a teacher goes to a student."""

    student: str
    who: str = ""


class Presence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    student: str
    present: bool
    who: str = ""


class Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Alerts to acknowledge."""

    ids: list[int]
    note: str | None = None
    who: str = ""


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A note on an alert; `right` labels it as right or wrong."""

    note: str | None = None
    right: bool | None = None
    who: str = ""


class Claimed(msgspec.Struct, frozen=True):
    student: str
    claim: Claim | None


class Done(msgspec.Struct, frozen=True):
    """Alerts that were not acknowledged before."""

    ids: list[int]


class Alerts(msgspec.Struct, frozen=True):
    items: list[Line]


@get("/board", opt={"role": "viewer"})
async def get_board(server_state: TheServerState, lesson: TheLesson) -> Response[bytes]:
    """Which students to visit, all students, and current alerts."""
    return Response(await lesson.room.board(server_state.database), media_type=MediaType.JSON)


@get("/live", opt={"role": "viewer"}, media_type="text/event-stream")
async def get_live(server_state: TheServerState, lesson: TheLesson) -> Stream:
    """Server-sent events: one for each change of the board."""
    lesson.room.check_room()
    stream = lesson.room.watch(server_state.database, lambda: server_state.hub.closed)
    return Stream(stream, media_type="text/event-stream")


@get("/student", opt={"role": "viewer"})
async def get_student(
    server_state: TheServerState, lesson: TheLesson, name: Name, since: Moment = None, until: Moment = None
) -> Story:
    """A student's runs, programs, changes, episodes and alerts; of the last hours by default."""
    end = time.time() if until is None else until
    begin, end = check_span(end - STORY if since is None else since, end)
    return await tell_story(server_state.database, name, begin, end, profile=lesson.profile, monitor=lesson.watch.name)


@get("/alerts", opt={"role": "viewer"})
async def get_alerts(
    server_state: TheServerState,
    lesson: TheLesson,
    trigger: Annotated[str | None, QueryParameter(max_length=100)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 200,
) -> Alerts:
    """All alerts, also resolved ones, newest first."""
    rows = await list_alerts(server_state.database, lesson.watch.name, trigger=trigger, limit=limit)
    return Alerts([line_of(row) for row in rows])


@post("/claim", opt={"role": "operator"}, status_code=200)
async def post_claim(server_state: TheServerState, lesson: TheLesson, request: Asked, data: JSONBody[Going]) -> Claimed:
    """Claim a student (I am going): the claim is visible to all."""
    who = _who(data.who, request)
    try:
        claim = await claims.claim(
            server_state.database, data.student, who, lesson.watch.name, **_by(data.who, request)
        )
    except claims.TakenError as error:
        raise Refused(409, str(error)) from error
    return Claimed(data.student, claim)


@post("/give-back", opt={"role": "operator"}, status_code=200)
async def post_give_back(
    server_state: TheServerState, lesson: TheLesson, request: Asked, data: JSONBody[Going]
) -> Claimed:
    """Withdraw a claim."""
    await claims.give_back(server_state.database, data.student, lesson.watch.name, **_by(data.who, request))
    return Claimed(data.student, None)


@post("/presence", opt={"role": "operator"}, status_code=200)
async def post_presence(
    server_state: TheServerState, lesson: TheLesson, request: Asked, data: JSONBody[Presence]
) -> Presence:
    """Whether a student is in the room."""
    by = _by(data.who, request)
    await claims.mark_present(server_state.database, data.student, data.present, lesson.watch.name, **by)
    return data


@post("/ack", opt={"role": "operator"}, status_code=200)
async def post_ack(server_state: TheServerState, lesson: TheLesson, request: Asked, data: JSONBody[Seen]) -> Done:
    """Acknowledge alerts. A sustained alert opens again if nothing changes."""
    if not 0 < len(data.ids) <= MOST_IDS or any(not 0 < each < 2**63 for each in data.ids):
        raise ConfigError(f"say which alerts: 1 to {MOST_IDS} ids")
    for id in data.ids:
        await _ours(server_state, lesson, id)
    note = _text(data.note) or None
    names = _by(data.who, request)
    async with transaction(server_state.database, by=names["by"]) as tx:
        return Done(await ack_alerts(tx, data.ids, at=time.time(), note=note, said=names["said"]))


@post("/alerts/{alert_id:int}/note", opt={"role": "operator"}, status_code=200)
async def post_note(
    server_state: TheServerState, lesson: TheLesson, request: Asked, alert_id: FromPath[int], data: JSONBody[Note]
) -> Line:
    """Set the note of an alert, or whether it was right; what is not given stays as it is."""
    row = await _ours(server_state, lesson, alert_id)
    text = row["note"] if data.note is None else _text(data.note)
    if data.right is not None:
        text = labelled(text, data.right)
    names = _by(data.who, request)
    async with transaction(server_state.database, by=names["by"]) as tx:
        await note_alert(tx, alert_id, note=text or "", said=names["said"])
    return line_of(await show_alert(server_state.database, alert_id))


# -- for researchers ------------------------------------------------------------------------------


class About(msgspec.Struct, frozen=True):
    """The first data of the research page."""

    profile: str
    triggers: list[dict[str, Any]]
    big_rewrite: float
    rewrite_from: float
    lasting_key: bool
    glass_box: bool


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    on: bool
    who: str = ""


class Switched(msgspec.Struct, frozen=True):
    trigger: str
    on: bool


@get("/about", opt={"role": "viewer"})
async def get_about(server_state: TheServerState, lesson: TheLesson) -> About:
    """The profile, and the triggers with their texts."""
    return About(
        profile=lesson.profile,
        triggers=[{"name": each.name, "kind": each.kind, "says": each.describe} for each in lesson.watch.triggers],
        big_rewrite=BIG_REWRITE,
        rewrite_from=REWRITE_FROM,
        lasting_key=lesson.lasting_key,
        glass_box=f"{lesson.watch.name}-glass" in server_state.app.monitors,
    )


@post("/triggers/{name:str}", opt={"role": "operator"}, status_code=200)
async def post_trigger(
    server_state: TheServerState, lesson: TheLesson, request: Asked, name: FromPath[str], data: JSONBody[Switch]
) -> Switched:
    """Switch a type of alert off, which resolves those that are open, or on again."""
    known = [trigger.name for trigger in lesson.watch.triggers]
    if name not in known:
        raise NotFoundError(f"there is no trigger {name!r}; there are {', '.join(known)}")
    names = _by(data.who, request)
    async with transaction(server_state.database, by=names["by"]) as tx:
        await switch_trigger(tx, lesson.watch.name, name, data.on, said=names["said"])
    return Switched(name, data.on)


@get("/sweep", opt={"role": "viewer"})
async def get_sweep(
    server_state: TheServerState,
    lesson: TheLesson,
    since: FromQuery[float],
    until: FromQuery[float],
    profile: FromQuery[Profile | None] = None,
) -> Sweep:
    """How often each trigger would have fired, for every threshold."""
    begin, end = check_span(since, until)
    return sweep(await lesson.study.lives(server_state.database, begin, end, profile or lesson.profile))


@get("/profiles", opt={"role": "viewer"})
async def get_profiles(
    server_state: TheServerState, lesson: TheLesson, since: FromQuery[float], until: FromQuery[float]
) -> Profiles:
    """What the document's figures, the corrected ones and the glass box would have opened."""
    begin, end = check_span(since, until)
    names = await pseudonyms_for(server_state.database, lesson.key, lesson.watch.name)
    return await lesson.study.profiles(server_state.database, begin, end, names)


@get("/day", opt={"role": "viewer"})
async def get_day(
    server_state: TheServerState, lesson: TheLesson, since: FromQuery[float], until: FromQuery[float]
) -> Day:
    """A span for replay."""
    begin, end = check_span(since, until)
    names = await pseudonyms_for(server_state.database, lesson.key, lesson.watch.name)
    return await lesson.study.day(server_state.database, begin, end, names)


@get("/precision", opt={"role": "viewer"})
async def get_precision(
    server_state: TheServerState, lesson: TheLesson, since: FromQuery[float], until: FromQuery[float]
) -> list[Precision]:
    """How often each trigger was right, by the labels in notes."""
    return await lesson.study.precision(server_state.database, *check_span(since, until))


@get("/export/{name:str}", opt={"role": "viewer"})
async def get_export(
    server_state: TheServerState,
    lesson: TheLesson,
    request: Asked,
    name: FromPath[str],
    since: FromQuery[float],
    until: FromQuery[float],
) -> Response[bytes]:
    """The data of a span, with pseudonyms: progsnap2.zip, events.csv, runs.csv or alerts.csv."""
    begin, end = check_span(since, until)
    database, monitor = server_state.database, lesson.watch.name
    names = await pseudonyms_for(database, lesson.key, monitor)
    if name == "progsnap2.zip":
        body, kind = await export_progsnap2(database, begin, end, names, monitor), "application/zip"
    elif name in ("events.csv", "alerts.csv"):
        table = events_csv if name == "events.csv" else alerts_csv
        body, kind = (await table(database, begin, end, names, monitor)).encode(), "text/csv"
    elif name == "runs.csv":
        lives = await lesson.study.lives(database, begin, end, lesson.profile)
        body, kind = runs_csv(lives, names).encode(), "text/csv"
    else:
        raise NotFoundError(
            f"there is no export {name!r}: progsnap2.zip, events.csv, runs.csv and alerts.csv are there"
        )
    await server_state.note(
        caller_of(request), "classroom.export", monitor, after={"file": name, "since": begin, "until": end}
    )
    headers = {"content-disposition": f'attachment; filename="classroom-{name}"', "cache-control": "no-store"}
    return Response(body, media_type=kind, headers=headers)


HANDLERS = [
    get_board, get_live, get_student, get_alerts, post_claim, post_give_back, post_presence, post_ack, post_note,
    get_about, post_trigger, get_sweep, get_profiles, get_day, get_precision, get_export,
]  # fmt: skip


def classroom_page(watch: Monitor, profile: Profile = "document") -> Page:
    """The page of a classroom's monitor.

    `CLASSROOM_KEY` keeps pseudonyms the same from one start to the next, `CLASSROOM_STREAMS` is how many pages may be
    open on one server.
    """
    key = os.environ.get("CLASSROOM_KEY")
    most = os.environ.get("CLASSROOM_STREAMS", str(MOST_WATCHING))
    if not most.isdecimal() or not int(most):
        raise ConfigError(f"CLASSROOM_STREAMS={most!r} is not a number of pages")
    lesson = Lesson(
        watch=watch,
        room=Room(watch.name, most_watching=int(most)),
        study=Study(watch, profile),
        profile=profile,
        key=key or secrets.token_hex(16),
        lasting_key=bool(key),
    )

    async def the_lesson() -> Lesson:
        return lesson

    router = Router(path="/", route_handlers=HANDLERS, dependencies={"lesson": Provide(the_lesson, use_cache=True)})
    return Page("classroom", "Classroom", FOLDER, [router])


async def _ours(server_state: ServerState, lesson: Lesson, id: int) -> Any:
    """An alert of this class."""
    row = await show_alert(server_state.database, id if 0 < id < 2**63 else 0)
    if row["monitor"] != lesson.watch.name:
        raise NotFoundError(f"alert {id} is not one of this class")
    return row


def _who(said: str, request: Asked) -> str:
    """The name that others see: the name that was entered, or that of the token."""
    return _text(said, most=80) or caller_of(request).name


def _by(said: str, request: Asked) -> Names:
    """The name in the audit trail: that of the token, and the name that was entered."""
    return Names(by=caller_of(request).name, said=_text(said, most=80))


def _text(said: str | None, *, most: int = MOST_TEXT) -> str:
    text = " ".join((said or "").split()) if most < MOST_TEXT else (said or "").strip()
    if len(text) > most:
        raise ConfigError(f"this is too long: {len(text):,} characters, and {most:,} is the most")
    return text
