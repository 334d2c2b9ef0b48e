"""The functions of `workflows.context.state_store` that programs import beside its classes."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from tidemill.flows.definition.decorators import steps_of
from tidemill.flows.definition.validate import find_state_type
from tidemill.flows.encoding.context_dict import SKIPPED_KEYS, UnserializableKeyWarning, load_store, save_store
from tidemill.flows.encoding.dict_like import DictState
from tidemill.flows.reducer.state.paths import MISSING, read_path, write_path
from tidemill.flows.runner.state_store import InMemoryStateStore, StateCell, StateStore, blank_state, merged_state

__all__ = [
    "KNOWN_UNSERIALIZABLE_KEYS",
    "MAX_DEPTH",
    "MODEL_T",
    "DictState",
    "InMemorySerializedState",
    "InMemoryStateStore",
    "StateStore",
    "UnserializableKeyWarning",
    "assign_path_step",
    "create_cleared_state",
    "create_in_memory_payload",
    "decode_state",
    "deserialize_dict_state_data",
    "deserialize_state_from_dict",
    "encode_state",
    "get_by_path",
    "infer_state_type",
    "merge_state",
    "parse_in_memory_state",
    "serialize_dict_state_data",
    "set_by_path",
    "traverse_path_step",
]

MODEL_T = TypeVar("MODEL_T", bound=BaseModel)
MAX_DEPTH = 1000
KNOWN_UNSERIALIZABLE_KEYS = tuple(SKIPPED_KEYS)


class InMemorySerializedState(BaseModel):
    """A saved state."""

    store_type: Literal["in_memory"] = "in_memory"
    state_type: str = "DictState"
    state_module: str = "workflows.context.state_store"
    state_data: Any = None


def parse_in_memory_state(data: dict[str, Any]) -> InMemorySerializedState:
    """Return a saved state from its dict."""
    store_type = data.get("store_type") or "in_memory"
    if store_type != "in_memory":
        raise ValueError(
            f"Cannot parse store_type '{store_type}' as InMemorySerializedState: it was saved by another kind of store"
        )
    return InMemorySerializedState.model_validate({**data, "store_type": store_type})


def encode_state(
    state: BaseModel, serializer: Any, known_unserializable_keys: tuple[str, ...] = KNOWN_UNSERIALIZABLE_KEYS
) -> tuple[Any, str, str]:
    """Return a state as JSON values, with the name and the module of its class."""
    saved = save_store(state, serializer, known_unserializable_keys)
    return saved["state_data"], saved["state_type"], saved["state_module"]


def decode_state(state_data: Any, serializer: Any) -> BaseModel:
    """Return the state of what `encode_state` gave."""
    if isinstance(state_data, BaseModel):
        return state_data
    return load_store({"state_data": state_data}, DictState, serializer)


def serialize_dict_state_data(
    state: DictState, serializer: Any, known_unserializable_keys: tuple[str, ...] = KNOWN_UNSERIALIZABLE_KEYS
) -> dict[str, Any]:
    """Return the values of a state without a declared type, each serialized."""
    return save_store(state, serializer, known_unserializable_keys)["state_data"]


def deserialize_dict_state_data(data: dict[str, Any], serializer: Any) -> DictState:
    """Return the state of what `serialize_dict_state_data` gave."""
    return load_store({"state_data": data}, DictState, serializer)


def deserialize_state_from_dict(
    serialized_state: dict[str, Any], serializer: Any, state_type: type[BaseModel] | None = None
) -> BaseModel:
    """Return the state of what `InMemoryStateStore.to_dict` gave."""
    return decode_state(serialized_state.get("state_data"), serializer)


def create_in_memory_payload(
    state: BaseModel, serializer: Any, known_unserializable_keys: tuple[str, ...] = KNOWN_UNSERIALIZABLE_KEYS
) -> InMemorySerializedState:
    """Save a state."""
    return InMemorySerializedState.model_validate(save_store(state, serializer, known_unserializable_keys))


def get_by_path(state: Any, path: str, default: Any = ...) -> Any:
    """Return the value at a path of a state; without a default, a path without a value raises a ValueError."""
    found = read_path(state, path)
    if found is not MISSING:
        return found
    if default is ...:
        raise ValueError(f"Path '{path}' not found in state")
    return default


def set_by_path(state: Any, path: str, value: Any) -> None:
    """Write a value at a path of a state; missing dicts are created."""
    if not path:
        raise ValueError("Path cannot be empty")
    write_path(StateCell(type(state), state), path, value)


def traverse_path_step(obj: Any, segment: str) -> Any:
    """Return the value of a key, an index or an attribute; a KeyError if there is none."""
    found = read_path(obj, segment)
    if found is MISSING:
        raise KeyError(segment)
    return found


def assign_path_step(obj: Any, segment: str, value: Any) -> None:
    """Write a key, an index or an attribute."""
    set_by_path(obj, segment, value)


def merge_state(current_state: Any, incoming: BaseModel) -> Any:
    """Return the state that `set_state` would leave."""
    return merged_state(current_state, incoming)


def create_cleared_state(state_type: Any) -> Any:
    """Return a new state of a type; a ValueError if a field has no default."""
    return blank_state(state_type)


def infer_state_type(workflow: Any) -> Any:
    """Return the state type that the steps of a workflow declare; DictState if they declare none."""
    return find_state_type(steps_of(type(workflow))) or DictState
