"""Encode payloads as JSON and decode them into typed Python values.

Arguments and results may be plain JSON values, dataclasses, msgspec Structs or pydantic models.
A value that cannot be encoded raises a `PayloadError` before anything is written; pickle is never used.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, get_type_hints

import msgspec

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.jobs.injected import is_injected
from tidemill.core.limits.size_limits import check_payload

SECRET, MASK = "$secret", "**********"
_NULL = b"null"
_NUL = b"\\u0000"
_DEEPEST = 500
_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def _is_pydantic(kind: Any) -> bool:
    # pydantic is looked up, not imported: a program that has not loaded it has none of its models.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _encode_other(value: Any) -> Any:
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json")
    if isinstance(value, msgspec.Raw):
        return ""  # `Raw` is already JSON, and was checked when it was made.
    raise NotImplementedError(f"a {type(value).__qualname__} has no JSON form")


def _decode_other(kind: type, value: Any) -> Any:
    if _is_pydantic(kind):
        return kind.model_validate(value)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, kind):
        return value
    raise NotImplementedError(f"a {kind.__qualname__} cannot be read from JSON")


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)


def encode(value: Any) -> bytes:
    """Encode a payload as JSON bytes; a `PayloadError` names the value that has no JSON form."""
    if value is None:
        return _NULL
    try:
        data = _encoder.encode(value)
    except Exception as error:
        raise PayloadError(f"this value cannot be stored as JSON: {error}") from error
    if _NULL in data:
        # The encoder silently writes null for NaN and for infinities.
        try:
            plain = msgspec.to_builtins(value, enc_hook=_encode_other, str_keys=True)
            place = None if _are_numbers_finite(plain) else find_no_number(plain, "$")
        except RecursionError as error:
            raise PayloadError("this value cannot be stored as JSON: it is nested too deeply") from error
        if place is not None:
            raise PayloadError(f"this value cannot be stored as JSON: NaN or an infinity - at `{place}`")
    return data


def _are_numbers_finite(plain: Any) -> bool:
    """Whether plain data have neither NaN nor an infinity; without paths, which cost more than all the rest."""
    level = [plain]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for value in level:
            if type(value) is str:
                continue
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list | tuple):
                below += value
            elif isinstance(value, float) and not math.isfinite(value):
                return False
        if not below:
            return True
        level = below
    raise RecursionError


def find_no_number(value: Any, place: str) -> str | None:
    """Return the path of the first NaN or infinity in plain data, or None."""
    if isinstance(value, float):
        return None if math.isfinite(value) else place
    parts: Any = ()
    if isinstance(value, dict):
        parts = ((f"{place}.{key}", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        parts = ((f"{place}[{index}]", part) for index, part in enumerate(value))
    return next((found for at, part in parts if (found := find_no_number(part, at)) is not None), None)


def storable(text: str) -> str:
    """Escape what PostgreSQL cannot store in text: NUL and unpaired surrogates."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def check_storable(what: str, text: str) -> str:
    """Return the text; a `ConfigError` if PostgreSQL cannot store it, before a statement of the caller's fails."""
    if text == storable(text):
        return text
    raise ConfigError(f"{what} {text!r:.100} cannot be stored: it contains NUL or half of a surrogate pair")


def mask_secrets(data: Any) -> Any:
    """Return decoded JSON for display: the content of every stored secret (`{"$secret": class, "value": …}`) masked."""
    if isinstance(data, list):
        return [mask_secrets(each) for each in data]
    if not isinstance(data, dict):
        return data
    if SECRET in data:
        return {**data, "value": MASK}
    return {name: mask_secrets(each) for name, each in data.items()}


def decode(data: bytes | str, kind: Any = Any) -> Any:
    """Decode JSON bytes as `kind`; a `PayloadError` says where they do not fit."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_decode_other)
    except Exception as error:
        raise PayloadError(str(error)) from error


class Signature:
    """The typed parameters of a function: encodes the arguments of a call and checks JSON against the annotations."""

    def __init__(self, function: Callable[..., Any], *, where: str) -> None:
        self._where = where
        self._arguments = f"{where}: its arguments"
        every = inspect.signature(function).parameters
        parameters = {name: parameter for name, parameter in every.items() if not is_injected(parameter)}
        try:
            hints = get_type_hints(function)
        except (NameError, TypeError) as error:
            raise ConfigError(f"{where}: the type hints cannot be read: {error}") from error
        fields: list[tuple[Any, ...]] = []
        for name, parameter in parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigError(
                    f"{where}: parameter {name!r} must be a plain named parameter, so that a stored job "
                    "can be called by name"
                )
            kind = hints.get(name, Any)
            fields.append(
                (name, kind) if parameter.default is parameter.empty else (name, kind, _field(parameter.default))
            )
        self.names = tuple(parameters)
        self.returns: Any = hints.get("return", Any)
        self._positional = tuple(name for name, each in parameters.items() if each.kind is not each.KEYWORD_ONLY)
        self.required = tuple(name for name, each in parameters.items() if each.default is each.empty)
        try:
            self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
            self._decoder = msgspec.json.Decoder(self._struct, dec_hook=_decode_other)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: an annotation cannot be read from JSON: {error}") from error

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what the function is called and takes."""
        facts = [(each.name, repr(each.type), each.required) for each in msgspec.structs.fields(self._struct)]
        return hashlib.sha256(repr((self._where, facts)).encode()).hexdigest()[:16]

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The parameters that may be left out, and what they are then, where JSON can say it."""
        found: dict[str, Any] = {}
        for each in msgspec.structs.fields(self._struct):
            if isinstance(each.default, str | int | float | bool | None):
                found[each.name] = each.default
        return found

    @cached_property
    def schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the arguments; None if an annotation has none."""
        try:
            (made,), parts = msgspec.json.schema_components([self._struct])
        except TypeError:
            return None
        return {**parts[made["$ref"].rpartition("/")[2]], "$defs": parts}

    def unknown_arguments(self, data: bytes | str) -> list[str]:
        """The names of arguments that the function does not have; none if the data is not an object."""
        given = msgspec.json.decode(data)
        return [name for name in given if name not in self.names] if isinstance(given, dict) else []

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Encode the arguments of a call and check that the function accepts them."""
        if not args:
            return self.pack(kwargs)
        if len(args) > len(self._positional):
            takes = ", ".join(self._positional) or "none"
            raise PayloadError(
                f"{self._where}: too many positional arguments: {len(args)} were given, it takes {takes}"
            )
        arguments = dict(zip(self._positional, args, strict=False))
        if twice := arguments.keys() & kwargs.keys():
            raise PayloadError(f"{self._where}: the argument {min(twice)!r} is given by position and by name")
        arguments.update(kwargs)
        return self.pack(arguments)

    def pack(self, arguments: Mapping[str, Any]) -> bytes:
        """Encode arguments given by name and check that the function accepts them."""
        try:
            data = encode(arguments)
        except PayloadError as error:
            raise PayloadError(f"{self._where}: {error}") from error
        check_payload(data, self._arguments)
        if _NUL in data and _ESCAPED_NUL.search(data):
            raise PayloadError(f"{self._where}: a string in the arguments contains a NUL character; remove it")
        try:
            self._decode(data)
        except PayloadError:
            self._check_names(arguments)
            raise
        return data

    def _check_names(self, arguments: Mapping[str, Any]) -> None:
        """Raise a `PayloadError` that names an unknown or a missing argument."""
        for name in arguments:
            if name not in self.names:
                raise self.unknown(name)
        for name in self.required:
            if name not in arguments:
                raise PayloadError(f"{self._where}: the argument {name!r} is missing")

    def unknown(self, name: str, others: Iterable[str] = ()) -> PayloadError:
        """The error for an argument that the function does not have; `others` are names that may be meant too."""
        hint = did_you_mean(name, (*self.names, *others)) or f"; it takes {', '.join(self.names) or 'none'}"
        return PayloadError(f"{self._where}: there is no argument {name!r}{hint}")

    def check(self, data: bytes | str) -> None:
        """Raise a `PayloadError` unless these JSON arguments fit the annotations."""
        try:
            self._decode(data)
        except PayloadError:
            with contextlib.suppress(msgspec.DecodeError):
                if isinstance(given := msgspec.json.decode(data), dict):
                    self._check_names(given)
            raise

    def load(self, data: bytes | str) -> dict[str, Any]:
        """Decode JSON bytes into keyword arguments."""
        if not self.names and data in (b"{}", "{}"):
            return {}
        return msgspec.structs.asdict(self._decode(data))

    def _decode(self, data: bytes | str) -> Any:
        try:
            return self._decoder.decode(data)
        except Exception as error:  # the code of a user's type may raise any exception
            raise PayloadError(f"{self._where}: bad arguments: {error}") from error


def _field(default: Any) -> Any:
    if isinstance(default, list | dict | set):
        return msgspec.field(default_factory=lambda: type(default)(default))
    return default
