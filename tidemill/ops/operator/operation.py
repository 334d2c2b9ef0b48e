"""What an operation is: its function, its arguments and result as Structs, its address and its role."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache, cached_property
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec
from msgspec import Meta, Struct

from tidemill.core.accounts import AccountRole
from tidemill.ops.operator.validation import checked
from tidemill.store.transaction import Reader, Transaction

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

A = TypeVar("A", bound=Struct)
R = TypeVar("R")
T = TypeVar("T")

Method = Literal["GET", "POST", "PUT", "DELETE"]

_PATH_FIELD = re.compile(r"\{(\w+)\}")
_LONG_FIELD = re.compile(r"\{(\w+):path\}\Z")

#: Every operation by its name; `ops/registry.py` loads all of them.
REGISTRY: dict[str, Operation[Any, Any]] = {}


class Declared:
    """Stands for `Declarations` in the annotations of operations, whose modules load it for type checkers only."""


class Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all arguments: frozen, given by name, and nothing that is not declared."""


class Nothing(Arguments, frozen=True, kw_only=True):
    """No arguments."""


class ListOf(Struct, Generic[T], frozen=True):
    """A list."""

    items: list[T]


class PageOf(Struct, Generic[T], frozen=True):
    """A page of a list; `next` is the cursor of the next page, or null on the last one."""

    items: list[T]
    next: str | None = None


class PauseState(Struct, frozen=True):
    """Whether the object of this name is paused."""

    name: str
    paused: bool


def doc(text: str, **limits: Any) -> Meta:
    """One line of help for a field, with its limits: `Annotated[int, doc("How many.", ge=1)]`."""
    return Meta(description=text, **limits)


#: Arguments that many operations share.
MOST_ON_A_PAGE = 200
Limit = Annotated[int, doc("How many to show on a page.", ge=1, le=MOST_ON_A_PAGE)]
_BEGIN = doc("Where the page begins: `next` of the previous page.")
Cursor = Annotated[Annotated[str, Meta(max_length=64)] | None, _BEGIN]
NameCursor = Annotated[Annotated[str, Meta(max_length=6000)] | None, _BEGIN]


class Operation(Generic[A, R]):
    """One operation. Call `Operator.do` with it; `run` is its function."""

    def __init__(
        self,
        address: str,
        role: AccountRole,
        run: Callable[..., Awaitable[R]],
        *,
        status: int,
        preview: Operation[Any, Any] | None,
        secret: bool,
        body: str | None,
        etag: bool,
    ) -> None:
        method, path = address.split(" ")
        self.long_field = found[1] if (found := _LONG_FIELD.search(path)) else None
        """The last field of the path, if it may contain slashes: `{name:path}`."""
        self.path = path.replace(":path}", "}")
        self.method: Method = cast(Method, method)
        self.role: AccountRole = role
        self.run = run
        self.name = run.__name__
        self.status = status
        self.preview = preview
        self.secret = secret
        """The result holds a secret, so it is never kept for an idempotency key."""
        self.body = body
        """The field that is the whole body of the request, if there is one."""
        self.etag = etag
        """The result has a `version`, which is the ETag of the response."""
        hints = get_type_hints(run, include_extras=True, localns={"Declarations": Declared})
        self.result: type[R] = hints.pop("return")
        parameters = list(inspect.signature(run).parameters)
        self.args: type[A] = hints[parameters[1]]
        self.writes = hints[parameters[0]] is Transaction
        self.takes_application = len(parameters) == 3
        self.needs_application = self.takes_application and type(None) not in get_args(hints[parameters[2]])
        self.path_fields = tuple(_PATH_FIELD.findall(self.path))
        self.description = inspect.getdoc(run) or self.name
        if hints[parameters[0]] not in (Reader, Transaction):
            raise TypeError(f"operation {self.name} takes a Reader or a Transaction first")

    def __repr__(self) -> str:
        return f"<operation {self.name}: {self.method} {self.path}>"

    @property
    def summary(self) -> str:
        return self.description.splitlines()[0].rstrip(".")

    @property
    def acts(self) -> bool:
        """Whether it changes something."""
        return self.method != "GET" and (self.role != "viewer" or self.writes)

    @property
    def takes_body(self) -> bool:
        return self.method in ("POST", "PUT")

    @cached_property
    def path_type(self) -> type[Struct]:
        """The arguments that are in the path."""
        return self._part("Path", lambda name: name in self.path_fields)

    @cached_property
    def rest_type(self) -> type[Struct]:
        """The arguments that are not in the path: in the query of a GET or DELETE, in the body of a POST or PUT."""
        return self.args if not self.path_fields else self._part("Body", lambda name: name not in self.path_fields)

    def _part(self, suffix: str, wanted: Callable[[str], bool]) -> type[Struct]:
        fields = [each for each in msgspec.structs.fields(self.args) if wanted(each.name)]
        made = [
            (each.name, each.type) if each.required else (each.name, each.type, default_of(each)) for each in fields
        ]
        name = f"{self.name.title().replace('_', '')}{suffix}"
        return msgspec.defstruct(name, made, frozen=True, kw_only=True, forbid_unknown_fields=True)

    def check(self, args: A) -> A:
        """The arguments, if they fit their types; a constructor does not look."""
        if type(args) is not self.args:
            raise TypeError(f"{self.name} takes {self.args.__name__}, and not {type(args).__name__}")
        return checked(self.args, args)


@cache  # Called for every request, and reading the types of all fields takes as long as answering it.
def header_fields(kind: type[Struct]) -> Mapping[str, str]:
    """The fields of arguments that HTTP takes from a header as well, declared by `doc(..., extra={"header": NAME})`."""
    found: dict[str, str] = {}
    for each in msgspec.structs.fields(kind):
        for note in getattr(each.type, "__metadata__", ()):
            if isinstance(note, Meta) and note.extra and "header" in note.extra:
                found[each.name] = note.extra["header"]
    return found


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """The default of a field, as `msgspec.defstruct` takes it."""
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default


def bare_type(kind: Any) -> Any:
    """A type without its help and limits, and without None."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    rest = [each for each in get_args(kind) if each is not type(None)]
    return bare_type(rest[0]) if type(None) in get_args(kind) and len(rest) == 1 else kind


class Declare(Protocol):
    """What `operation(...)` returns: a decorator that keeps the types of the function."""

    @overload
    def __call__(self, run: Callable[[Any, A], Awaitable[R]], /) -> Operation[A, R]: ...

    @overload
    def __call__(self, run: Callable[[Any, A, Any], Awaitable[R]], /) -> Operation[A, R]: ...


def operation(
    address: str,
    *,
    role: AccountRole,
    status: int | None = None,
    preview: Operation[Any, Any] | None = None,
    secret: bool = False,
    body: str | None = None,
    etag: bool = False,
) -> Declare:
    """Declare an operation: `@operation("POST /jobs/cancel", role="operator")`."""

    def declare(run: Callable[..., Awaitable[Any]]) -> Operation[Any, Any]:
        usual = 204 if address.startswith("DELETE") else 200
        made = Operation(
            address, role, run, status=status or usual, preview=preview, secret=secret, body=body, etag=etag
        )
        if made.name in REGISTRY:
            raise TypeError(f"two operations are called {made.name}")
        REGISTRY[made.name] = made
        return made

    return declare


class ChangeWatch(Protocol):
    """Changes of the topics that were asked for."""

    async def wait(self, seconds: float) -> object:
        """Return at a change, or after this many seconds."""
        ...


class Operator(Protocol):
    """Where operations are done: `Local` on the database, `Remote` through a server."""

    @property
    def where(self) -> str:
        """The address of the database or the server, as it is shown."""
        ...

    async def do(self, operation: Operation[A, R], args: A, /) -> R:
        """Do one operation; raises the same errors wherever it is done."""
        ...

    def read_value(self, place: str) -> AsyncIterator[bytes]:
        """A value that is too large for an answer, in pieces: `job/result/7`, or the address that an answer names."""
        ...

    def watch(self, *topics: str) -> AbstractAsyncContextManager[ChangeWatch]:
        """Follow changes while the block lasts: `queue:NAME`, `run:ID`, `workers` and so on."""
        ...
