"""Events: declared fields, dynamic values, and their way through JSON."""

# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import copy
import gc
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import Field, PrivateAttr, ValidationError, computed_field, field_serializer

from tidemill.core.errors import PayloadError
from tidemill.flows.definition.events import (
    CollectionReleaseEvent,
    DictLikeModel,
    Event,
    EventRegistry,
    StartEvent,
    StepFailedEvent,
    StepState,
    StepStateChanged,
    StopEvent,
    UnreconstructedException,
    WorkflowFailedEvent,
    decode_event,
    encode_event,
    qualified_name,
)


class Order(Event):
    amount: int = Field(ge=0)
    _seen: int = PrivateAttr(default=3)


class Plain(Event):
    note: str = "none"


class Receipt(StopEvent):
    total: int = 0


with pytest.warns(UserWarning, match="shadows"):

    class Verdict(StopEvent):
        result: int = 0  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]


class Envelope(Event):
    inner: Plain


def test_declared_fields_are_validated_and_converted() -> None:
    assert Order.model_validate({"amount": "5"}).amount == 5
    with pytest.raises(ValidationError):
        Order(amount=-1)
    with pytest.raises(ValidationError):
        Order()


def test_other_keywords_are_dynamic_values() -> None:
    event = Order(amount=1, colour="red", _hint=4)
    assert event.colour == "red"
    assert event["colour"] == "red"
    assert event._hint == 4
    assert event.get("missing") is None
    assert event.get("missing", 7) == 7
    assert "colour" in event
    assert list(event.keys()) == ["colour", "_hint"]
    assert list(event.values()) == ["red", 4]
    assert dict(event) == event.to_dict() == {"colour": "red", "_hint": 4}  # type: ignore[call-overload]
    assert len(event) == 2


def test_the_dict_side_of_an_event_shows_dynamic_values_only() -> None:
    event = Order(amount=1)
    assert "amount" not in event
    assert event.get("amount") is None
    assert list(event) == []
    with pytest.raises(KeyError):
        event["amount"]


def test_a_missing_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Order' object has no attribute 'nothing'"):
        _ = Order(amount=1).nothing


def test_values_can_be_set_as_attributes_and_as_items() -> None:
    event = Order(amount=1)
    event.later = 2
    event["more"] = 3
    event.amount = 9
    event._seen = 11
    event._undeclared = 1
    assert event.to_dict() == {"later": 2, "more": 3, "_undeclared": 1}
    assert event.amount == 9
    assert event._seen == 11


def test_a_declared_private_attribute_can_be_given_at_construction() -> None:
    event = Order(amount=1, _seen=9)
    assert event._seen == 9
    assert Order(amount=1)._seen == 3
    assert "_seen" not in event


def test_an_event_is_always_true_even_when_empty() -> None:
    assert Event()
    assert len(Event()) == 0


def test_events_are_equal_when_all_their_values_are() -> None:
    assert Event(x=1) == Event(x=1)
    assert Event(x=1) != Event(x=2)
    assert Order(amount=1) == Order(amount=1)
    assert Event() != StartEvent()


def test_copies_keep_dynamic_values_apart() -> None:
    event = Order(amount=1, tags=["a"])
    twin = copy.deepcopy(event)
    twin.tags.append("b")
    assert event.tags == ["a"]
    assert event.model_copy(update={"amount": 2}).tags == ["a"]


def test_a_dump_keeps_dynamic_values_apart_and_can_be_read_back() -> None:
    event = Order(amount=1, colour="red")
    assert event.model_dump() == {"amount": 1, "_data": {"colour": "red"}}
    assert json.loads(event.model_dump_json()) == {"amount": 1, "_data": {"colour": "red"}}
    assert Order.model_validate(event.model_dump()) == event
    assert Order(amount=1).model_dump() == {"amount": 1}


def test_the_representation_shows_declared_fields() -> None:
    assert repr(Order(amount=1, colour="red")) == "Order(amount=1)"
    assert repr(StopEvent(result=2, why="done")) == "StopEvent(why='done', result=2)"
    assert str(StopEvent(result=[1])) == "[1]"


def test_a_value_named_like_a_method_does_not_hide_the_method() -> None:
    event = Event(items=1)
    assert event["items"] == 1
    assert list(event.items()) == [("items", 1)]


def test_a_stop_event_carries_its_result_beside_everything_else() -> None:
    assert StopEvent().result is None
    assert StopEvent(1).result == 1
    event = StopEvent(result=2, why="done")
    assert event.result == 2
    assert event.to_dict() == {"why": "done"}
    assert StopEvent(result=2).model_dump() == {"result": 2}
    assert Receipt(total=3).model_dump() == {"total": 3}
    assert StopEvent.model_validate({"result": 5}).result == 5
    assert StopEvent(result=1) != StopEvent(result=2)


def test_a_stop_event_may_declare_its_result_as_a_field() -> None:
    assert Verdict(result=3).result == 3
    assert Verdict().result == 0
    with pytest.raises(ValidationError):
        Verdict(result="no")


def test_a_subclass_may_have_an_init_of_its_own() -> None:
    class Counted(Event):
        n: int

        def __init__(self, n: int, **more: Any) -> None:
            super().__init__(n=n + 1, **more)

    assert Counted(1, x=2).n == 2
    assert Counted(1, x=2).x == 2


def test_a_class_with_a_hook_after_construction_runs_it() -> None:
    class Hooked(Event):
        def model_post_init(self, context: Any) -> None:
            self.touched = True

    assert Hooked().touched


@pytest.mark.parametrize(
    "event",
    [
        Order(amount=1, colour="red"),
        Plain(),
        Event(),
        StartEvent(a=None, b=[1, {"c": "d"}]),
        StopEvent(),
        StopEvent(result=[1, 2], why="done"),
        Receipt(total=2, result={"x": 1}),
        Verdict(result=4),
        Envelope(inner=Plain(note="in", extra=1)),
        StepStateChanged(name="a", step_state=StepState.RUNNING, worker_id="0", input_event_name="StartEvent"),
        CollectionReleaseEvent(events=[Order(amount=3, z=1), Plain()]),
    ],
    ids=repr,
)
def test_an_event_comes_back_from_json_as_it_was(event: Event) -> None:
    assert decode_event(encode_event(event)) == event


def test_the_json_names_the_class_and_holds_plain_values() -> None:
    document = json.loads(encode_event(Order(amount=1, colour="red")))
    assert document == {"type": f"{__name__}.Order", "value": {"amount": 1, "colour": "red"}}
    assert decode_event(document) == Order(amount=1, colour="red")


def test_a_stored_failure_keeps_the_event_and_the_exception() -> None:
    failed = StepFailedEvent(
        step_name="pay",
        input_event=Order(amount=1, colour="red"),
        exception=KeyError("account"),
        attempts=2,
        elapsed_seconds=0.5,
        failed_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    back = decode_event(encode_event(failed))
    assert back.input_event == failed.input_event
    assert isinstance(back.exception, KeyError)
    assert back.exception.args == ("account",)
    assert back.failed_at == failed.failed_at


class Picky(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


@pytest.mark.parametrize("name", ["nowhere.Gone", f"{__name__}.Picky", "os.path", "builtins.SystemExit"])
def test_an_exception_that_cannot_be_made_again_keeps_its_message_and_class_name(name: str) -> None:
    stored = {"step_name": "s", "exception": {"exception_type": name, "exception_message": "1: no"}}
    back = WorkflowFailedEvent.model_validate(stored).exception
    assert isinstance(back, UnreconstructedException)
    assert str(back) == "1: no"
    assert back.original_type == name


def test_what_has_no_json_form_is_refused_when_encoding() -> None:
    with pytest.raises(PayloadError, match="StartEvent"):
        encode_event(StartEvent(what=object()))
    with pytest.raises(PayloadError, match="StopEvent"):
        encode_event(StopEvent(result=object()))


def test_a_field_that_was_set_to_the_wrong_type_is_refused_when_encoding() -> None:
    event = Plain()
    event.note = 5  # type: ignore[assignment]
    with pytest.raises(PayloadError, match="Plain"):
        encode_event(event)


class Priced(Event):
    name: str
    cents: int
    paid: bool = False


class InWords(Event):
    cents: int

    @field_serializer("cents")
    def words(self, value: int) -> str:
        return f"{value} cents"


class Doubled(Event):
    cents: int

    @computed_field
    @property
    def twice(self) -> int:
        return 2 * self.cents


class Kept(Event):
    cents: int
    secret: int = Field(default=0, exclude=True)


@pytest.mark.parametrize(
    "event",
    [
        Priced(name='tide "\x00" \\ ä', cents=2**80),
        Priced(name="tide", cents=3, paid=True, note="dynamic"),
        InWords(cents=3),
        Doubled(cents=3),
        Kept(cents=3, secret=4),
        Receipt(number=7, result="done"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_of_plain_fields_is_written_as_its_class_says(event: Event) -> None:
    said = json.loads(type(event).__pydantic_serializer__.to_json(event))
    assert json.loads(encode_event(event))["value"] == said | event._hidden()


def test_only_classes_that_this_process_has_defined_are_read() -> None:
    with pytest.raises(PayloadError, match=r"nowhere\.Gone"):
        decode_event(b'{"type":"nowhere.Gone","value":{}}')
    with pytest.raises(PayloadError, match=r"os\.PathLike"):
        decode_event(b'{"type":"os.PathLike","value":{}}')


@pytest.mark.parametrize("data", [b"", b"[]", b'{"type":1,"value":{}}', b"nonsense", {"type": "x"}])
def test_what_is_no_encoded_event_is_a_payload_error(data: Any) -> None:
    with pytest.raises(PayloadError):
        decode_event(data)


def test_values_that_do_not_fit_the_class_are_a_payload_error() -> None:
    with pytest.raises(PayloadError, match="amount"):
        decode_event({"type": f"{__name__}.Order", "value": {"amount": -1}})
    with pytest.raises(PayloadError):
        decode_event({"type": f"{__name__}.Order", "value": {}})


def test_a_registry_limits_what_is_read_also_inside_other_events() -> None:
    only_plain = EventRegistry([Plain, CollectionReleaseEvent])
    assert decode_event(encode_event(Plain()), only_plain) == Plain()
    with pytest.raises(PayloadError, match="Order"):
        decode_event(encode_event(Order(amount=1)), only_plain)
    with pytest.raises(PayloadError, match="Order"):
        decode_event(encode_event(CollectionReleaseEvent(events=[Order(amount=1)])), only_plain)
    assert Plain in only_plain
    assert Order not in only_plain
    assert list(only_plain) == [Plain, CollectionReleaseEvent]


def test_a_registry_finds_a_class_by_its_bare_name_if_that_is_clear() -> None:
    class Twin(Event):
        pass

    Twin.__qualname__ = "Plain"
    Twin.__name__ = "Plain"
    Twin.__module__ = "elsewhere"
    registry = EventRegistry([Plain, Order])
    assert registry.find("Order") is Order
    assert registry.find(qualified_name(Plain)) is Plain
    with pytest.raises(PayloadError, match="not an event class"):
        registry.find("Nothing")
    registry.add(Twin)
    with pytest.raises(PayloadError, match="several"):
        registry.find("Plain")


def test_a_class_that_is_gone_is_no_longer_read() -> None:
    def define() -> bytes:
        class Brief(Event):
            pass

        return encode_event(Brief())

    data = define()
    gc.collect()
    with pytest.raises(PayloadError, match="Brief"):
        decode_event(data)


def test_a_dict_like_model_need_not_be_an_event() -> None:
    state = DictLikeModel(a=1)
    state.b = 2
    assert state.to_dict() == {"a": 1, "b": 2}


def test_of_two_event_classes_of_one_name_the_one_from_a_module_of_that_name_is_meant() -> None:
    """A program's module goes by another name where it is run than where it is imported."""
    makers = type(Event)
    shop, mill = (
        makers("Grain", (Event,), {"__module__": module, "__qualname__": "Grain", "__annotations__": {"kilos": int}})
        for module in ("a.b.shop", "a.b.mill")
    )
    assert type(decode_event(b'{"type":"shop.Grain","value":{"kilos":1}}')) is shop
    assert type(decode_event(b'{"type":"mill.Grain","value":{"kilos":1}}')) is mill
    with pytest.raises(PayloadError, match=r"event class elsewhere\.Grain is not defined in this process"):
        decode_event(b'{"type":"elsewhere.Grain","value":{"kilos":1}}')
