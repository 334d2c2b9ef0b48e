"""Save a context as a dict of JSON values and load it: a run in memory can be saved and continued later.

The state is encoded with a serializer, value by value. The work in progress (queues, running steps, open questions,
batches) is the snapshot of the run, under `run`; a run that has ended has none.
"""

from __future__ import annotations

import warnings
from collections.abc import Container
from typing import Any

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import PayloadError
from tidemill.flows.definition.topology import Topology
from tidemill.flows.encoding.dict_like import DictState
from tidemill.flows.encoding.serializers import JsonSerializer
from tidemill.flows.encoding.snapshot import decode_state, encode_state
from tidemill.flows.errors import ContextSerdeError
from tidemill.flows.reducer.state.flow_state import FlowState

VERSION = 2
SKIPPED_KEYS = frozenset({"memory"})
"""The names of values that are left out with a warning if they cannot be serialized."""


class UnserializableKeyWarning(Warning):
    """A value of the state was left out of a saved context."""


def save_context(state: FlowState | None, store: Any, serializer: Any, *, include_state: bool) -> dict[str, Any]:
    """Return a context as JSON values: its shared state, and its run if that goes on."""
    goes_on = state is not None and state.status in ("running", "cancelled")
    saved: dict[str, Any] = {
        "version": VERSION,
        "state": save_store(store, serializer) if include_state else {},
        "is_running": goes_on,
    }
    if state is not None and goes_on:
        saved["run"] = save_run(state)
    return saved


def load_context(data: dict[str, Any], kind: Any, serializer: Any, topology: Topology) -> tuple[Any, FlowState | None]:
    """Return the shared state of a saved context, and its run, if it was in progress."""
    check_version(data)
    store = load_store(data.get("state"), kind, serializer)
    if not data.get("is_running"):
        return store, None
    if "run" not in data:
        raise ContextSerdeError("this context was saved while its run was in progress, but the run is missing in it")
    return store, load_run(data["run"], topology)


def save_store(store: Any, serializer: Any, skipped: Container[str] = SKIPPED_KEYS) -> dict[str, Any]:
    """Return the shared state as JSON values; a ValueError names a value that cannot be serialized."""
    kind = type(store)
    data = _save_values(store, serializer, skipped) if isinstance(store, DictState) else serializer.serialize(store)
    return {
        "store_type": "in_memory",
        "state_type": kind.__name__,
        "state_module": kind.__module__,
        "state_data": data,
    }


def load_store(data: Any, kind: Any, serializer: Any) -> Any:
    """Load the saved state, or create a new one if none was saved."""
    saved = data.get("state_data") if isinstance(data, dict) else None
    if saved is None:
        return kind()
    if isinstance(saved, dict):
        values = {name: serializer.deserialize(text) for name, text in saved.get("_data", {}).items()}
        return kind(**values)
    return serializer.deserialize(saved)


def save_run(state: FlowState) -> dict[str, Any]:
    """Return the work in progress of a run as JSON values, without the shared state."""
    under_way = msgspec.structs.replace(state, store=None, status="running", result=None, error=None)
    try:
        return decode(encode_state(under_way))
    except PayloadError as error:
        raise ContextSerdeError(f"the run cannot be saved: {error}") from error


def load_run(data: Any, topology: Topology) -> FlowState:
    """Load the work in progress of a saved run."""
    try:
        return decode_state(encode(data), topology)
    except (PayloadError, KeyError, TypeError) as error:
        raise ContextSerdeError(f"the saved run cannot be loaded: {error}") from error


def check_version(data: dict[str, Any]) -> None:
    """Raise if a newer version of Tidemill saved the context."""
    version = data.get("version", VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise ContextSerdeError(
            f"this context has version {version} of the format, but this version of Tidemill reads at most {VERSION}; "
            "update Tidemill to read it"
        )


def default_serializer() -> JsonSerializer:
    return JsonSerializer()


def _save_values(store: DictState, serializer: Any, skipped: Container[str]) -> dict[str, Any]:
    saved: dict[str, str] = {}
    for name, value in store.items():
        try:
            saved[name] = serializer.serialize(value)
        except Exception as error:
            if name not in skipped:
                raise ValueError(f"the value of {name!r} in the state cannot be serialized: {error}") from error
            warnings.warn(f"{name!r} is left out of the saved context: {error}", UnserializableKeyWarning, stacklevel=5)
    return {"_data": saved}
