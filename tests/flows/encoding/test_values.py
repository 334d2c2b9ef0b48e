"""Values in the state, events and results of runs: each is stored with its type, or refused with its place."""

from __future__ import annotations

import collections
import dataclasses
import enum
import ipaddress
import re
import threading
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, NamedTuple, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import pytest
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    SecretStr,
    field_serializer,
    field_validator,
    model_serializer,
)
from pydantic.dataclasses import dataclass as checked_dataclass

from tidemill.core.codec import decode, encode, mask_secrets
from tidemill.core.errors import PayloadError
from tidemill.flows import Context, StartEvent, Workflow, step
from tidemill.flows.definition.events import Event, StopEvent
from tidemill.flows.encoding.copies import copy_data
from tidemill.flows.encoding.events import decode_event, encode_event
from tidemill.flows.encoding.values import pack, pack_state, readable, unpack
from tidemill.flows.simulate import simulate

T = TypeVar("T")
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
TWICE = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)


class Color(enum.Enum):
    RED = 1
    BLUE = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Name(str):
    pass


class Basket(dict[str, int]):
    pass


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Stop:
    at: datetime
    seen: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    parts: tuple[int, ...]


@checked_dataclass
class Checked:
    at: datetime


class Shape(msgspec.Struct, frozen=True):
    name: str
    sides: Any = None


class Inner(BaseModel):
    at: datetime
    ids: set[UUID] = set()


class Special(Inner):
    more: Any = None


class Everything(BaseModel):
    inner: Inner
    color: Color = Color.BLUE
    secret: SecretStr = SecretStr("s3cret")
    raw: bytes = b"\xff\x00"
    path: Path = Path("/a/b")
    price: Decimal = Decimal("1.10")
    names: dict[int, str] = {1: "one"}
    anything: Any = (1, 2)
    url: AnyUrl = AnyUrl("http://example.org/")


class Handle:
    def __init__(self, address: str) -> None:
        self.address = address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.address == self.address

    __hash__ = None  # type: ignore[assignment]


class Serialised(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    handle: Handle
    amount: Annotated[int, PlainSerializer(str)] = Field(default=1, alias="sum")

    @field_serializer("handle", when_used="json")
    def _dump(self, handle: Handle) -> str:
        return handle.address

    @field_validator("handle", mode="before")
    @classmethod
    def _load(cls, handle: Any) -> Any:
        return handle if isinstance(handle, Handle) else Handle(handle)


class AsOne(BaseModel):
    a: int

    @model_serializer
    def _dump(self) -> dict[str, int]:
        return {"a": self.a}


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Box(BaseModel, Generic[T]):
    content: T


VALUES = [
    None,
    True,
    1.5,
    float("inf"),
    [-float("inf")],
    "text",
    2**80,
    -(2**63),
    [1, [2]],
    {"a": {"b": [1]}},
    (1, (2, [3])),
    {1: "a", (2, 3): "b"},
    {"$model": 1, "$x": {"$tuple": [1]}},
    {"self": 1},
    {1, 2},
    frozenset({(1, 2)}),
    collections.deque([1, 2], 5),
    collections.OrderedDict(b=1, a=2),
    collections.Counter("aab"),
    collections.defaultdict(list, {1: [2]}),
    range(1, 9, 2),
    b"\x00\xff",
    bytearray(b"x"),
    1 + 2j,
    re.compile("x", re.I),
    NOON,
    TWICE,
    NOON.astimezone(timezone(timedelta(hours=5))),
    datetime(2026, 1, 1),
    date(2026, 1, 1),
    time(1, 2, 3),
    timedelta(days=-1, microseconds=1),
    ZoneInfo("Asia/Tokyo"),
    uuid4(),
    Decimal("1.50"),
    PurePosixPath("a/b"),
    Path("c"),
    ipaddress.ip_address("10.0.0.1"),
    AnyUrl("http://example.org/"),
    SecretStr("s3cret"),
    Color.RED,
    Color.BLUE,
    Level.HIGH,
    Word.YES,
    Rights.READ | Rights.WRITE,
    Name("Ada"),
    Basket(a=1),
    Point(1, 2),
    Stop(NOON, {1}),
    Fixed((1, 2)),
    Checked(NOON),
    Shape("tri", {3}),
    Everything(inner=Special(at=NOON, ids={uuid4()}, more=(1,))),
    Serialised(handle=Handle("here"), sum=7),
    AsOne(a=1),
    Extra.model_validate({"b": NOON}),
    Box[int](content=3),
    Box[Inner](content=Inner(at=NOON)),
    RootModel[list[int]]([1]),
    StopEvent(result=(1, NOON)),
    Event(when=NOON, tags={"a"}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
def test_a_value_is_read_as_it_was_stored(value: Any) -> None:
    again = unpack(decode(encode(pack(value))))
    assert type(again) is type(value)
    assert again == value


class Search(BaseModel):
    least: float = float("inf")


class Found(Event):
    value: float


class Searching(Workflow):
    """Begins with a state that JSON has no word for."""

    @step
    async def begin(self, ev: StartEvent) -> Found:
        return Found(value=3.5)

    @step(queue="far")
    async def far(self, ctx: Context[Search], ev: Found) -> StopEvent:
        before = await ctx.store.get("least")
        async with ctx.store.edit_state() as state:
            state.least = min(state.least, ev.value)
        await ctx.sleep(1)
        return StopEvent(result=[str(before), await ctx.store.get("least")])


def test_the_state_of_a_durable_run_may_begin_with_an_infinity() -> None:
    assert simulate(Searching(timeout=None), seed=1).result() == ["inf", 3.5]


def test_the_parts_of_a_model_keep_their_types() -> None:
    stored = Everything(inner=Special(at=TWICE, more={1}))
    again = unpack(decode(encode(pack(stored))))
    assert type(again.inner) is Special
    assert again.inner.more == {1}
    assert again.inner.at.tzinfo == TWICE.tzinfo
    assert again.inner.at.utcoffset() == TWICE.utcoffset()
    assert again.secret.get_secret_value() == "s3cret"
    assert again.anything == (1, 2)


def test_a_class_defined_in_a_function_is_found_again() -> None:
    class Local(BaseModel):
        at: datetime

    assert unpack(pack(Local(at=NOON))) == Local(at=NOON)


def test_an_excluded_field_is_not_stored_and_has_its_default_again() -> None:
    class Connected(BaseModel):
        name: str = ""
        client: Any = Field(default=None, exclude=True)

    packed = pack(Connected(name="a", client=threading.Lock()))
    assert unpack(packed) == Connected(name="a", client=None)


def test_an_excluded_field_without_a_default_is_refused_when_it_is_written() -> None:
    class Hopeless(BaseModel):
        client: Any = Field(exclude=True)

    with pytest.raises(PayloadError, match="client is excluded and has no default"):
        pack(Hopeless(client=1))


def test_a_serializer_whose_output_cannot_be_read_is_refused_when_it_is_written() -> None:
    class OneWay(BaseModel):
        at: datetime

        @field_serializer("at")
        def _dump(self, at: datetime) -> str:
            return f"about {at.year}"

    with pytest.raises(PayloadError, match="cannot be read from what its serializers give"):
        pack(OneWay(at=NOON))


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        (threading.Lock(), "'k'", "lock"),
        (object(), "'k'", "builtins.object"),
        (lambda: 1, "'k'", "function"),
        ({"a": [1, {"b": threading.Lock()}]}, "'k.a.1.b'", "lock"),
        (Extra.model_validate({"client": object()}), "'k.client'", "builtins.object"),
        (collections.defaultdict(lambda: 1), "'k'", "default_factory"),
    ],
)
def test_a_live_object_is_refused_with_its_place_and_class(value: Any, place: str, kind: str) -> None:
    with pytest.raises(PayloadError, match=rf"the value at {place} in the state cannot be stored: .*{kind}"):
        pack_state(value, "k")


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PayloadError, match="contains itself"):
        pack_state(endless, "k")


class Mixed(Event):
    secret: SecretStr
    raw: bytes
    anything: Any
    at: datetime
    listed: list[Any] = Field(default_factory=list)


def test_an_event_keeps_values_whose_type_no_annotation_tells() -> None:
    event = Mixed(secret=SecretStr("x"), raw=b"\xff", anything=(1, {2}), at=NOON, listed=[(1,)])
    event["when"] = date(2026, 1, 1)
    again = decode_event(encode_event(event))
    assert again == event
    assert again.secret.get_secret_value() == "x"
    assert (again.anything, again.listed, again.when) == ((1, {2}), [(1,)], date(2026, 1, 1))


def test_an_event_is_readable_json_beside_its_exact_values() -> None:
    document = decode(encode_event(StopEvent(result=(1, NOON))))
    assert document["value"] == {"result": [1, "2026-11-16T12:00:00+00:00"]}
    assert "exact" not in decode(encode_event(StopEvent(result={"a": [1]})))


def test_secrets_are_masked_where_they_are_shown() -> None:
    packed = pack({"key": SecretStr("s3cret"), "model": Everything(inner=Inner(at=NOON))})
    assert "s3cret" not in str(readable(packed))
    assert "s3cret" not in str(mask_secrets(packed))
    assert readable(packed)["model"]["names"] == {"1": "one"}


def test_a_copy_shares_live_objects_and_nothing_else() -> None:
    lock = threading.Lock()
    value = {
        "lock": lock,
        "list": [1, {2}],
        "stop": Stop(NOON),
        "model": Extra.model_validate({"items": [lock]}),
        "shape": Shape("a", [1]),
    }
    copied = copy_data(value)
    copied["list"][1].add(3)
    copied["stop"].seen.add(1)
    copied["model"].items.append(1)
    copied["shape"].sides.append(2)
    assert copied["lock"] is lock
    assert copied["model"].items[0] is lock
    assert value["list"] == [1, {2}]
    assert value["stop"].seen == set()
    assert value["model"].items == [lock]
    assert value["shape"].sides == [1]
