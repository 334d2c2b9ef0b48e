"""Human input of a flow run: the list of its open questions, and the events that answer them.

A step asks by waiting for a `HumanResponseEvent`, or for any event for which it has published an `InputRequiredEvent`;
or a step returns an `InputRequiredEvent` and another one takes the `HumanResponseEvent`. Waits for events that programs
send are not listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
from pydantic import PydanticUserError

from tidemill.core.codec import encode, storable
from tidemill.core.errors import ConfigError
from tidemill.core.ticks import Noted, Tick
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import ChildEnded, Event, HumanResponseEvent, InputRequiredEvent, SleepEnded
from tidemill.flows.definition.topology import Topology
from tidemill.flows.reducer.state.flow_state import FlowState, Work
from tidemill.flows.reducer.step_ticks import WaitAsked
from tidemill.flows.runner.sending import make_event
from tidemill.store.runs.run_turn import RunTurn

PROMPTS = ("prompt", "question", "prefix", "message", "text")  # the fields that may contain the text of a request
LONGEST_PROMPT = 2000
LONGEST_NAME = 60
_PLAIN = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_UNSAFE = re.compile(r"\W+", re.ASCII)

#: A row of the list: name, prompt, schema of the answer, due time.
Ask = tuple[str, str, bytes | None, float | None]


class Question(msgspec.Struct, frozen=True):
    """An open question of a run: its name, and the class and fixed values of the event that answers it."""

    name: str
    kind: type[Event]
    given: dict[str, Any]
    work: int | None = None
    """The work that waits for the answer; None if a step takes the answer."""
    key: str = ""


class Questionnaire:
    """Records with each turn of a run which questions were asked and which are closed."""

    def __init__(self, topology: Topology, state: FlowState) -> None:
        self._topology = topology
        self._open = {each.name: each for each in questions(topology, state)}
        self._listed: Any = None  # the last listed request for input

    def follow(self, state: FlowState, ticks: Sequence[Tick], turn: RunTurn) -> None:
        """Add the changes of these ticks to a turn."""
        asks: dict[str, Ask] = {}
        for tick in ticks:
            if type(tick) is Noted and type(tick.note) is WaitAsked:
                work = state.works.get(tick.work)
                if work is not None and tick.note.question in work.waiting and _is_for_people(tick.note):
                    asked = _waited(work, tick.note.question)
                    asks[asked.name] = self._ask(asked, tick.note.show, state, work.waiting[asked.key].due)
        head = state.prompts[0] if state.prompts else None
        if head is not self._listed:
            self._listed = head
            asks |= {each.name: self._ask(each, head, state, None) for each in _taken(self._topology, state)}
        if not self._open:
            return
        turn.reaches_out = True  # Its questions are closed when the run ends.
        settled = [name for name, each in self._open.items() if not _is_open(state, each)]
        for name in settled:
            del self._open[name]
        changed = {*settled, *asks}
        turn.asks = [ask for ask in turn.asks if ask[0] not in changed] + list(asks.values())
        turn.answered = [name for name in turn.answered if name not in changed] + settled

    def _ask(self, asked: Question, show: Any, state: FlowState, due: float | None) -> Ask:
        self._open[asked.name] = asked
        if self._topology.durable_timeout is not None:  # The question ends with the run.
            ends = state.started + self._topology.durable_timeout
            due = ends if due is None else min(due, ends)
        return asked.name, prompt_of(show), schema_of(asked), due


def questions(topology: Topology, state: FlowState) -> Iterator[Question]:
    """Yield all questions that an event from outside can answer now, including those for programs."""
    for work in state.works.values():
        for question, wait in work.waiting.items():
            if wait.kind not in (ChildEnded, SleepEnded):
                yield _waited(work, question)
    yield from _taken(topology, state)


def renamed_questions(state: FlowState, renamed: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the former and the present name of each question of waiting steps that may have been renamed."""
    found: list[tuple[str, str]] = []
    for before, now in renamed.items():
        for work in state.works.values():
            if work.step == now:
                names = (_waited(work, question).name for question in work.waiting)
                found += [(before + name.removeprefix(now), name) for name in names]
    return found


def answer(topology: Topology, state: FlowState, name: str, fields: Any) -> Event | None:
    """Create the event that answers a question; None if the question is closed, a `ConfigError` if it does not fit."""
    step, slash, rest = name.partition("/")
    name = f"{topology.renamed.get(step, step)}{slash}{rest}"
    asked = next((each for each in questions(topology, state) if each.name == name), None)
    if asked is None:
        return None
    if not isinstance(fields, dict):
        raise ConfigError(f"an answer to {name} must be a JSON object with the fields of a {asked.kind.__name__}")
    return make_event(asked.kind, {**fields, **asked.given})


def prompt_of(show: Any) -> str:
    """Return the text of a request for input, shortened to a few lines."""
    if not isinstance(show, Event):
        return ""
    fields = {**show.__dict__, **dict(show.items())}
    prompt = next((fields[name] for name in PROMPTS if isinstance(fields.get(name), str)), None)
    text = prompt if prompt is not None else ", ".join(f"{name}: {value}" for name, value in fields.items())
    return storable(text[:LONGEST_PROMPT].strip())


def schema_of(asked: Question) -> bytes | None:
    """Return the JSON Schema of the fields that the answer must contain; None if the event declares none."""
    schema = _schema(asked.kind)
    if schema is None:
        return None
    fields = {name: each for name, each in schema["properties"].items() if name not in asked.given}
    return encode(
        {**schema, "properties": fields, "required": [name for name in schema.get("required", ()) if name in fields]}
    )


def schema_of_start(workflow: object) -> dict[str, Any] | None:
    """Return the JSON Schema of the fields that a run of a workflow is started with; None if it declares none."""
    return _schema(declared(workflow).start_event_class)


@lru_cache(maxsize=256)
def _schema(kind: type[Event]) -> dict[str, Any] | None:
    if not kind.model_fields:
        return None
    try:
        return kind.model_json_schema()
    except PydanticUserError:  # A field has a type without a schema: the answer is written as plain JSON.
        return None


def _is_for_people(note: WaitAsked) -> bool:
    return issubclass(note.kind, HumanResponseEvent) or isinstance(note.show, InputRequiredEvent)


def _waited(work: Work, question: str) -> Question:
    wait = work.waiting[question]
    return Question(f"{work.step}/{work.id}/{_short(question)}", wait.kind, wait.requirements, work.id, question)


@lru_cache(maxsize=1024)
def _short(question: str) -> str:
    """Return a short unique name of a question that fits into a URL and an index."""
    base, _, number = question.rpartition(" #")
    if number.isdigit():  # It is asked again and again.
        return f"{_short(base)}-{number}"
    kind, _, needed = question.partition(" ")
    if needed == "[]" and _PLAIN.fullmatch(kind):  # It has no name and requires only a class.
        return kind.rpartition(".")[2]
    if _PLAIN.fullmatch(question) and len(question) <= LONGEST_NAME:
        return question
    words = _UNSAFE.sub("-", kind.rpartition(".")[2] + needed)[:LONGEST_NAME].strip("-")
    return f"{words}-{blake2b(question.encode(errors='replace'), digest_size=4).hexdigest()}"


def _taken(topology: Topology, state: FlowState) -> Iterator[Question]:
    if state.prompts:
        for step, kind in topology.answers:
            yield Question(step, kind, {})


def _is_open(state: FlowState, asked: Question) -> bool:
    if asked.work is None:
        return bool(state.prompts)
    work = state.works.get(asked.work)
    return work is not None and asked.key in work.waiting
