"""Exceptions of steps come back as they were: groups, arguments, attributes, notes and causes."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from tests.support import eventually, value
from tests.support.durable import running_run_worker
from tidemill import App
from tidemill.flows import Context, StartEvent, StepFailedEvent, StopEvent, Workflow, catch_error, step
from tidemill.flows.definition.events import UnreconstructedException
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed
from tidemill.flows.encoding.exceptions import exception_document, exception_from
from tidemill.flows.simulate import simulate
from tidemill.store.database import Database


class Refused(Exception):
    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code, self.reason = code, reason


class Prefixed(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(f"no {name}")


class Told(Exception):
    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b

    def __str__(self) -> str:
        return f"{self.a} and {self.b}"


class Reduced(Exception):
    def __init__(self, a: int) -> None:
        super().__init__(f"a is {a}")
        self.a = a

    def __reduce__(self) -> Any:
        return Reduced, (self.a,)


class DiskError(OSError):
    def __init__(self, disk: str) -> None:
        super().__init__(5, "I/O error", disk)
        self.disk = disk


class Holder(Exception):
    def __init__(self, connection: object, tries: int) -> None:
        super().__init__("it broke")
        self.connection, self.tries = connection, tries


class Group(ExceptionGroup[Exception]):
    def derive(self, excs: Any) -> Group:
        return Group(self.message, excs)


class Outer:
    class Inner(ValueError):
        pass


class Order(BaseModel):
    amount: int = Field(gt=0)
    name: str = "x"

    @field_validator("name")
    @classmethod
    def check(cls, name: str) -> str:
        if name == "odd":
            raise PydanticCustomError("oddness", "{name} is odd", {"name": name})
        if name == "bad":
            raise ValueError("bad {name}")
        return name


def noted(error: Exception, *notes: str) -> Exception:
    for note in notes:
        error.add_note(note)
    return error


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def invalid(**fields: Any) -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        Order(**fields)
    return raised.value


ERRORS = {
    "plain": ValueError("no"),
    "without arguments": ValueError(),
    "several arguments": ValueError("a", 2, ("b", None)),
    "a key": KeyError("account"),
    "a key that is no text": KeyError(7),
    "a file": FileNotFoundError(2, "No such file", "/there"),
    "text": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "an import": ImportError("no x", name="x", path="/x.py"),
    "required keywords": Refused(5, reason="late"),
    "a prefix": Prefixed("bread"),
    "its own words": Told(1, 2),
    "its own reduction": Reduced(3),
    "a subclass of OSError": DiskError("sda"),
    "a class inside a class": Outer.Inner("in"),
    "notes": noted(ValueError("x"), "one", "two"),
    "a cause that ends tasks": caused(TimeoutError("late"), asyncio.CancelledError()),
    "a cause": caused(RuntimeError("outer"), caused(KeyError("inner"), OSError(13, "denied"))),
    "a group": ExceptionGroup("two", [ValueError("a"), Refused(1, reason="b")]),
    "a nested group": noted(
        ExceptionGroup("all", [ExceptionGroup("in", [KeyError("k")]), noted(ValueError("v"), "n")]), "outer"
    ),
    "a group of its own class": Group("mine", [ValueError("a")]),
    "a model": invalid(amount=-1, name="bad"),
    "a model with an error of its own": invalid(amount="many", name="odd"),
}


def shape(error: BaseException) -> Any:
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    said = error.errors(include_url=False) if isinstance(error, ValidationError) else vars(error)
    return (
        type(error),
        str(error),
        repr(error.args),
        repr(said),
        [shape(each) for each in inner],
        None if error.__cause__ is None else shape(error.__cause__),
    )


@pytest.mark.parametrize("name", [name for name in ERRORS if "model" not in name])
def test_an_exception_comes_back_as_it_was(name: str) -> None:
    error = ERRORS[name]
    assert shape(exception_from(json.loads(json.dumps(exception_document(error))))) == shape(error)


@pytest.mark.parametrize("name", [name for name in ERRORS if "model" in name])
def test_the_error_of_a_model_comes_back_with_what_was_wrong(name: str) -> None:
    error = ERRORS[name]
    assert isinstance(error, ValidationError)
    back = exception_from(json.loads(json.dumps(exception_document(error))))
    assert isinstance(back, ValidationError)
    assert (str(back), back.title) == (str(error), error.title)
    found = [(each["type"], each["loc"], each["msg"], each["input"]) for each in back.errors()]
    assert found == [(each["type"], each["loc"], each["msg"], each["input"]) for each in error.errors()]


@pytest.mark.parametrize("error", [*ERRORS.values(), Holder(object(), 3), Told(object(), 2)])  # type: ignore[arg-type]
def test_an_exception_that_has_come_back_is_stored_as_before(error: Exception) -> None:
    stored = exception_document(error)
    assert exception_document(exception_from(stored)) == stored


def test_an_attribute_that_cannot_be_stored_is_missing() -> None:
    back = exception_from(exception_document(Holder(object(), 3)))
    assert isinstance(back, Holder)
    assert (str(back), back.tries) == ("it broke", 3)
    assert not hasattr(back, "connection")


def test_an_exception_whose_words_need_what_cannot_be_stored_keeps_its_message() -> None:
    class_less = Told(object(), 2)  # type: ignore[arg-type]
    back = exception_from(exception_document(class_less))
    assert isinstance(back, UnreconstructedException)
    assert str(back) == str(class_less)


def test_much_detail_is_left_out() -> None:
    document = exception_document(ValueError("short", "x" * 100_000))
    assert "exception_detail" not in document
    assert isinstance(exception_from(document), ValueError)


class Fails(Workflow):
    """Fails after it has waited, with an error that it has from a side effect that runs once."""

    error: Exception = ValueError()

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        def effect() -> None:
            raise self.error

        try:
            await ctx.once("effect", effect)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised after the wait
            kept = error
        else:
            raise AssertionError("it did not fail")
        await ctx.sleep(1)
        raise kept


class Handled(Fails):
    @catch_error
    async def handle(self, ev: StepFailedEvent) -> StopEvent:
        return StopEvent(result=[type(ev.exception).__name__, str(ev.exception)])


class Parent(Workflow):
    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        keys = list[str]()
        try:
            await ctx.child(Fails)
        except* KeyError as found:
            await ctx.sleep(1)
            keys += [str(each) for each in found.exceptions]
        return StopEvent(result=keys)


@pytest.mark.parametrize("name", ["a group", "a nested group", "required keywords", "a file", "notes", "a cause"])
def test_a_durable_run_raises_the_exception_of_its_step_as_it_was(name: str) -> None:
    Fails.error = ERRORS[name]
    for seed in range(5):
        with pytest.raises(type(ERRORS[name])) as raised:
            simulate(Fails(timeout=None), seed=seed).result()
        assert shape(raised.value) == shape(ERRORS[name])


def test_a_handler_gets_a_group_as_it_was() -> None:
    Handled.error = ERRORS["a group"]
    for seed in range(5):
        assert simulate(Handled(timeout=None), seed=seed).result() == ["ExceptionGroup", str(ERRORS["a group"])]


def test_a_parent_catches_parts_of_the_group_that_its_child_has_raised() -> None:
    Fails.error = ExceptionGroup("two", [KeyError("a"), KeyError("b")])
    for seed in range(5):
        outcome = simulate(Parent(timeout=None), seed=seed, others=[Fails(timeout=None)])
        assert outcome.result() == ["'a'", "'b'"]


def test_the_note_of_a_run_says_what_is_in_a_group() -> None:
    Fails.error = ERRORS["a group"]
    outcome = simulate(Fails(timeout=None), seed=1)
    assert outcome.row.note == "ExceptionGroup: two (2 sub-exceptions): ValueError: a; Refused: 1: b"


class Retried(Workflow):
    """Fails, and tries again a day later."""

    @step(retry_policy=retry_policy(wait=wait_fixed(86_400), stop=stop_after_attempt(2)))
    async def work(self, ev: StartEvent) -> StopEvent:
        raise ERRORS["required keywords"]


class Caught(Workflow):
    """Goes on after its side effect has failed, and waits for a day."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        def effect() -> None:
            raise ERRORS["required keywords"]

        with suppress(Refused):
            await ctx.once("effect", effect)
        await ctx.sleep(86_400)
        return StopEvent()


@pytest.mark.parametrize("kind", [Retried, Caught])
async def test_the_version_before_reads_what_is_stored_of_an_exception(
    app: App, database: Database, kind: type[Workflow]
) -> None:
    """It expects class, message and traceback of a failure, and class and message of an operation that has failed."""
    app.workflow(kind)
    async with running_run_worker(app):
        run = await app.start(kind)
        await eventually(lambda: value(database, "SELECT seq > 1 FROM tidemill.run WHERE id = $1", run.id))
    work = json.loads(await value(database, "SELECT data -> 'works' -> 0 FROM tidemill.snapshot"))
    ticks = await database.fetch("SELECT data -> 'note' -> 'operations' AS operations FROM tidemill.tick")
    records = [work["record"], *(json.loads(each["operations"]) for each in ticks if each["operations"])]
    errors = [each[4] for record in records for each in record if len(each) > 4]
    name = f"{__name__}.Refused"
    if kind is Retried:
        assert (len(work["error"]), work["error"][:2]) == (3, [name, "5: late"])
    else:
        assert errors == [[name, "5: late"]] * 2
