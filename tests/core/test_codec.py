"""Payloads: what can be an argument or a result, and what is refused before anything is written."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st

from tidemill.core.codec import Signature, decode, encode
from tidemill.core.errors import ConfigError, PayloadError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Address:
    street: str
    floor: int = 0


class Money(msgspec.Struct, frozen=True):
    amount: Decimal
    currency: str = "EUR"


class Customer(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)
    since: datetime | None = None


@dataclasses.dataclass
class Order:
    id: UUID
    placed: datetime
    address: Address
    lines: list[Money]
    colours: dict[str, Colour]


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
plain_json = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def signature(function: Any) -> Signature:
    return Signature(function, where="task send")


def round_trip(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    known = signature(function)
    return known.load(known.bind(args, kwargs))


# Values that survive


@given(plain_json)
def test_plain_json_comes_back_as_it_went_in(value: Any) -> None:
    assert decode(encode(value)) == value


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_comes_back_as_the_same_moment(moment: datetime) -> None:
    def send(at: datetime) -> None: ...

    assert round_trip(send, moment) == {"at": moment}


@given(st.builds(Address, st.text(st.characters(exclude_characters="\x00")), st.integers(-(2**63), 2**63 - 1)))
def test_a_dataclass_comes_back_as_a_dataclass(address: Address) -> None:
    def send(to: Address) -> None: ...

    assert round_trip(send, to=address) == {"to": address}


def test_structs_enums_models_dates_and_bytes_come_back_typed() -> None:
    def send(price: Money, colour: Colour, who: Customer, day: date, raw: bytes) -> None: ...

    values = {
        "price": Money(Decimal("9.99")),
        "colour": Colour.BLUE,
        "who": Customer(name="Ann", age=7, since=datetime(2024, 2, 29, tzinfo=UTC)),
        "day": date(2024, 2, 29),
        "raw": b"\x00\xff",
    }
    assert round_trip(send, **values) == values


def test_types_may_be_nested() -> None:
    def send(order: Order, notes: list[Customer], maybe: Money | None = None) -> None: ...

    order = Order(
        id=UUID(int=7),
        placed=datetime(2024, 1, 1, tzinfo=UTC),
        address=Address("Quay 1"),
        lines=[Money(Decimal(1)), Money(Decimal(2), "USD")],
        colours={"door": Colour.RED},
    )
    notes = [Customer(name="Bo", age=1)]
    assert round_trip(send, order, notes) == {"order": order, "notes": notes, "maybe": None}


def test_a_set_is_stored_as_a_list_and_comes_back_as_the_set_that_is_declared() -> None:
    def send(ids: set[int], names: frozenset[str]) -> None: ...

    assert round_trip(send, {3, 1}, frozenset({"a"})) == {"ids": {1, 3}, "names": frozenset({"a"})}


@given(st.integers())
def test_an_integer_of_any_size_keeps_every_digit(number: int) -> None:
    def send(number: int) -> None: ...

    assert round_trip(send, number) == {"number": number}


def test_an_argument_without_an_annotation_may_be_anything_that_json_has() -> None:
    def send(what) -> None: ...

    assert round_trip(send, {"a": [1, None, "x"]}) == {"what": {"a": [1, None, "x"]}}


# Calls


def test_a_call_may_mix_positions_and_names() -> None:
    def send(a: int, b: int, *, c: int = 3) -> None: ...

    assert round_trip(send, 1, b=2) == {"a": 1, "b": 2, "c": 3}


def test_a_function_without_parameters_takes_an_empty_call() -> None:
    def send() -> None: ...

    assert round_trip(send) == {}
    with pytest.raises(PayloadError, match="task send"):
        signature(send).load(b'{"left_over": 1}')


def test_defaults_are_filled_in_when_the_job_runs_not_when_it_is_stored() -> None:
    def send(a: int, size: int = 10) -> None: ...

    assert signature(send).bind((1,), {}) == b'{"a":1}'


def test_a_mutable_default_is_not_shared_between_jobs() -> None:
    def send(to: list[str] = [], options: dict[str, int] = {"a": 1}, seen: set[int] = set()) -> None: ...  # noqa: B006

    known = signature(send)
    first = known.load(b"{}")
    first["to"].append("x")
    first["options"]["b"] = 2
    first["seen"].add(1)
    assert known.load(b"{}") == {"to": [], "options": {"a": 1}, "seen": set()}


def test_a_default_may_be_any_object_that_is_declared() -> None:
    def send(colour: Colour = Colour.RED, price: Money = Money(Decimal(1)), to: Address | None = None) -> None: ...  # noqa: B008

    assert round_trip(send) == {"colour": Colour.RED, "price": Money(Decimal(1)), "to": None}


# Calls that are refused, each by name


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "order_id"),
        ((1, 2), {}, "too many positional"),
        ((1,), {"order_id": 2}, "order_id"),
        ((), {"order_id": 1, "colour": "red"}, "colour"),
        (("seven",), {}, "order_id"),
        ((1.5,), {}, "order_id"),
        ((None,), {}, "order_id"),
        (([1],), {}, "order_id"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_task_and_argument(args: Any, kwargs: Any, named: str) -> None:
    def send(order_id: int) -> None: ...

    with pytest.raises(PayloadError) as caught:
        signature(send).bind(args, kwargs)
    assert "task send" in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        (b'{"order_id": "7"}', "order_id"),
        (b"{}", "order_id"),
        (b'{"order_id": 7, "extra": 1}', "extra"),
        (b"[7]", "array"),
        (b"{", "task send"),
        (b"", "task send"),
        (b"\xff", "task send"),
    ],
)
def test_stored_arguments_that_do_not_fit_are_refused_with_task_and_argument(stored: bytes, named: str) -> None:
    def send(order_id: int) -> None: ...

    with pytest.raises(PayloadError) as caught:
        signature(send).load(stored)
    assert "task send" in str(caught.value)
    assert named in str(caught.value)


def test_a_model_that_does_not_validate_is_refused_with_its_argument() -> None:
    def send(who: Customer) -> None: ...

    with pytest.raises(PayloadError, match=r"task send.*(?s:.*)age"):
        signature(send).load(b'{"who": {"name": "Ann", "age": -1}}')


def test_a_deeply_wrong_value_is_refused_with_its_place() -> None:
    def send(order: Order) -> None: ...

    stored = (
        b'{"order": {"id": "00000000-0000-0000-0000-000000000007", "placed": "2024-01-01T00:00:00Z",'
        b' "address": {"street": 5}, "lines": [], "colours": {}}}'
    )
    with pytest.raises(PayloadError, match=r"\$\.order\.address\.street"):
        signature(send).load(stored)


def _cyclic() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    "value",
    [object(), _cyclic(), {(1, 2): 3}, 1j, lambda: None, "\ud800", [object()], Exception("x")],
    ids=["object", "cycle", "tuple key", "complex", "function", "surrogate", "nested object", "exception"],
)
def test_a_value_without_a_json_form_is_refused_with_the_task(value: Any) -> None:
    def send(what) -> None: ...

    with pytest.raises(PayloadError, match="JSON") as caught:
        signature(send).bind((value,), {})
    assert "task send" in str(caught.value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_refused(number: float) -> None:
    def send(ratio: float) -> None: ...

    with pytest.raises(PayloadError, match="ratio"):
        signature(send).bind((number,), {})


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_does_not_have_is_not_silently_lost(number: float) -> None:
    def send(what) -> None: ...

    with pytest.raises(PayloadError):
        signature(send).bind(({"ratio": number},), {})


class Picky:
    """A hand-written type whose validation raises something of its own."""

    def __init__(self, text: str) -> None:
        self.text = text


@dataclasses.dataclass
class Careless:
    code: str

    def __post_init__(self) -> None:
        {"known": 1}[self.code]


def test_a_type_that_fails_in_its_own_way_is_a_bad_payload_too() -> None:
    def send(what: Careless) -> None: ...

    with pytest.raises(PayloadError, match="task send"):
        signature(send).load(b'{"what": {"code": "unknown"}}')


def test_a_type_that_json_cannot_give_is_refused_with_its_name() -> None:
    def send(what: Picky) -> None: ...

    with pytest.raises(PayloadError, match="Picky"):
        signature(send).load(b'{"what": "text"}')


# Functions that cannot be tasks


def _var_positional(*args: int) -> None: ...
def _var_named(**options: int) -> None: ...
def _positional_only(a: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter"), [(_var_positional, "args"), (_var_named, "options"), (_positional_only, "a")]
)
def test_a_parameter_that_cannot_be_named_in_a_stored_job_is_refused(function: Any, parameter: str) -> None:
    with pytest.raises(ConfigError, match=f"task send: parameter '{parameter}'"):
        signature(function)


def test_an_annotation_that_names_nothing_is_refused() -> None:
    def send(what: Nothing) -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    with pytest.raises(ConfigError, match="task send: the type hints cannot be read"):
        signature(send)


def test_an_annotation_that_json_can_never_be_read_as_is_refused() -> None:
    def send(what: Address | Order) -> None: ...

    with pytest.raises(ConfigError, match="task send"):
        signature(send)


# Reading and writing alone


def test_nothing_is_null() -> None:
    assert encode(None) == b"null"
    assert decode(b"null") is None


@given(st.binary(max_size=40))
def test_bytes_that_are_not_json_are_a_bad_payload_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(PayloadError):
        decode(data)


def test_a_model_inside_a_plain_value_is_stored_as_its_fields() -> None:
    assert decode(encode({"who": [Customer(name="Ann", age=7)]})) == {"who": [{"name": "Ann", "age": 7, "since": None}]}


@pytest.mark.parametrize("depth", [600, 5000])
def test_what_is_nested_too_deeply_is_refused_as_any_other_bad_payload(depth: int) -> None:
    value: Any = None
    for _ in range(depth):
        value = [value]
    with pytest.raises(PayloadError):
        encode(value)
