"""Encode and decode the exception of a step: its class and message, and what else is needed to make it again.

    {"exception_type": "builtins.ValueError", "exception_message": "no"}
    {..., "exception_detail": {"args": [...], "state": {...}, "notes": [...], "cause": {...}, "exceptions": [...]}}

The detail is left out where the message says it all. An exception is made again without its `__init__`, from its
arguments and attributes; attributes that cannot be stored are missing then. Decoding never imports a module. An
exception whose class is unknown in this process, or that cannot be made again, is decoded as an
`UnreconstructedException` with the class name.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from tidemill.core.codec import encode, storable
from tidemill.core.errors import PayloadError, words_of
from tidemill.flows.encoding.classes import find_class, qualified_name

_DEEPEST = 8
_LARGEST = 1 << 16
_HEAP_TYPE = 1 << 9
_RAISED = "$exception"


class UnreconstructedException(Exception):
    """Replaces an exception that could not be recreated from its stored form."""

    def __init__(self, message: str, *, original_type: str | None = None, detail: Any = None) -> None:
        super().__init__(message)
        self.original_type = original_type
        self.detail = detail
        """What is stored of the original, so that it is stored again as it was."""


def exception_document(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain JSON values."""
    return _document(error, 0)


def exception_detail(error: Any, kind: str) -> dict[str, Any] | None:
    """Return what is stored of an exception of this class beside its class and message; None if that says it all."""
    if not isinstance(error, BaseException):
        return None
    document = exception_document(error)
    return document.get("exception_detail") if document["exception_type"] == kind else None


def exception_of(kind: str, message: str, detail: Any = None) -> Exception:
    """Recreate an exception from its class, message and detail, or return an `UnreconstructedException`."""
    made = _recreated(kind, message, detail)
    return made if isinstance(made, Exception) else UnreconstructedException(message, original_type=kind, detail=detail)


def _recreated(kind: str, message: str, detail: Any) -> BaseException:
    cls = _loaded_class(kind)
    if cls is not None:
        try:
            made = cls(message) if not detail or "args" not in detail else _made(cls, detail, message)
            for note in (detail or {}).get("notes", ()):
                made.add_note(note)
            if detail and "cause" in detail:
                made.__cause__ = _part(detail["cause"])
        except Exception:  # noqa: BLE001, S110 -- the constructor may raise any exception, but the message must be kept
            pass
        else:
            return made
    return UnreconstructedException(message, original_type=kind, detail=detail)


def exception_from(document: Any) -> Exception:
    """Recreate an exception from its document, or return an `UnreconstructedException`."""
    if isinstance(document, Exception):
        return document
    try:
        kind, message = document["exception_type"], document["exception_message"]
    except (TypeError, KeyError) as error:
        raise PayloadError(f"this is not a stored exception: {document!r}") from error
    return exception_of(kind, message, document.get("exception_detail"))


def _document(error: BaseException, depth: int) -> dict[str, Any]:
    if isinstance(error, UnreconstructedException) and error.original_type is not None:
        stored = {"exception_type": error.original_type, "exception_message": str(error)}
        return {**stored, "exception_detail": error.detail} if error.detail else stored
    is_key = isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str)
    message = storable(error.args[0] if is_key else words_of(error))
    document: dict[str, Any] = {"exception_type": qualified_name(type(error)), "exception_message": message}
    if depth < _DEEPEST and (detail := _detail(error, message, depth)):
        document["exception_detail"] = detail
    return document


def _detail(error: BaseException, message: str, depth: int) -> dict[str, Any]:
    """Return what makes an exception again; nothing if that cannot be stored, or is much."""
    try:
        detail = _parts(error, message, depth)
    except Exception:  # noqa: BLE001 -- the exception's own code is the user's
        detail = {}
    if notes := [storable(each) for each in getattr(error, "__notes__", ()) if isinstance(each, str)]:
        detail["notes"] = notes
    if error.__cause__ is not None:
        detail["cause"] = _document(error.__cause__, depth + 1)
    return detail if len(encode(detail)) <= _LARGEST else {}


def _parts(error: BaseException, message: str, depth: int) -> dict[str, Any]:
    if isinstance(error, ValidationError):
        return {"args": [error.title, [_line(each) for each in error.errors(include_url=False)]]}
    if isinstance(error, BaseExceptionGroup):
        inner = [_document(each, depth + 1) for each in error.exceptions]
        return {"args": [storable(error.message)], "exceptions": inner, **_state(vars(error), depth)}
    reduced: Any = error.__reduce__()
    make, args, state = reduced[0], reduced[1], reduced[2] if len(reduced) > 2 else None
    if make is not type(error):
        return {}
    detail = _state(state or {}, depth)
    if args != (message,) or detail or type(type(error).__init__) is FunctionType:
        detail["args"] = [_packed(each, depth) for each in args]
    return detail


def _state(attributes: dict[str, Any], depth: int) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    for name, value in attributes.items():
        if name != "__notes__":
            try:
                stored[name] = _packed(value, depth)
            except Exception:  # noqa: BLE001, S112 -- for example a connection: the exception is made without it
                continue
    return {"state": stored} if stored else {}


def _line(line: Any) -> dict[str, Any]:
    """Return one error of a pydantic model."""
    stored: dict[str, Any] = {"type": line["type"], "loc": list(line["loc"]), "msg": storable(line["msg"])}
    context = {k: words_of(v) if isinstance(v, BaseException) else v for k, v in line.get("ctx", {}).items()}
    for name, value in (("input", line["input"]), ("ctx", context)):
        try:
            stored[name] = _packed(value, 0)
        except PayloadError:
            stored[name] = storable(repr(value)) if name == "input" else {}
    return stored


def _packed(value: Any, depth: int) -> Any:
    from tidemill.flows.encoding.values import pack  # it knows events, which may hold exceptions

    if isinstance(value, BaseException):
        return {_RAISED: _document(value, depth + 1)}
    packed = storable(value) if isinstance(value, str) else pack(value)
    encode(packed)
    return packed


def _unpacked(stored: Any) -> Any:
    from tidemill.flows.encoding.values import unpack

    return _part(stored[_RAISED]) if isinstance(stored, dict) and _RAISED in stored else unpack(stored)


def _made(cls: type[BaseException], detail: dict[str, Any], message: str) -> Any:
    """Make an exception without its `__init__`, which may take other arguments than it has passed on."""
    if issubclass(cls, ValidationError):
        title, lines = detail["args"]
        return ValidationError.from_exception_data(title, [_init_line(each) for each in lines])
    args: list[Any] = [_unpacked(each) for each in detail["args"]]
    if issubclass(cls, BaseExceptionGroup):
        args.append([_part(each) for each in detail["exceptions"]])
    if type(cls.__reduce__) is FunctionType:  # The class says itself how it is made again.
        made = cls(*args)
    else:
        built_in = next(each for each in cls.__mro__ if not each.__flags__ & _HEAP_TYPE)
        made = built_in.__new__(cls, *args)
        built_in.__init__(made, *args)
    made.__setstate__({name: _unpacked(value) for name, value in detail.get("state", {}).items()})
    if not isinstance(made, KeyError) and storable(words_of(made)) != message:
        raise ValueError("it would say something else")
    return made


def _init_line(line: dict[str, Any]) -> Any:
    kind: Any = line["type"]
    made = {"type": kind, "loc": tuple(line["loc"]), "input": _unpacked(line["input"]), "ctx": _unpacked(line["ctx"])}
    try:
        ValidationError.from_exception_data("", [made])  # pyright: ignore[reportArgumentType]
    except (KeyError, TypeError, ValueError):
        made["type"] = PydanticCustomError(kind, line["msg"], made.pop("ctx"))
    return made


def _part(document: dict[str, Any]) -> BaseException:
    """Recreate a part of an exception, which may be one that ends a process."""
    return _recreated(document["exception_type"], document["exception_message"], document.get("exception_detail"))


def _loaded_class(name: str) -> type[BaseException] | None:
    found = find_class(name, BaseException)
    return found if found is not None and issubclass(found, BaseException) else None
