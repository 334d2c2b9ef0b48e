"""Options of commands: those that many share, and those that follow from the arguments of an operation.

@options_of(ListJobs)
def jobs(args: ListJobs, *, json: Json = False, connection: ServerOptions = ANYWHERE) -> None: ...
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from cyclopts import Parameter, Token

from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError
from tidemill.ops.operator.operation import bare_type

Command = Callable[..., Any]

Json = Annotated[bool, Parameter(help="Print one JSON document.")]
Shown = Annotated[int, Parameter(help="How many to show.")]
Yes = Annotated[bool, Parameter(help="Do not ask, however many there are.")]
Metrics = Annotated[str | None, Parameter(help="Serve Prometheus metrics at this address, such as 127.0.0.1:9464.")]
Supervise = Annotated[
    bool, Parameter(help="Run in a process that is started again when it dies.", negative="--no-supervise")
]
Application = Annotated[str, Parameter(help="The application: app.py, app.py:name or package.module.")]
AppOption = Annotated[str | None, Parameter(help="The application, for its code: app.py. A server has it.")]
RunId = Annotated[str, Parameter(help="The run, as `tidemill runs` shows it: r12.")]
Follow = Annotated[bool, Parameter(help="Show the run until it has ended; the exit status says whether it succeeded.")]


#: Options that are a moment in the past, or how long ago it was.
PAST_MOMENTS = {"since", "until"}


def read_moment(text: str | None, option: str) -> datetime | None:
    """A moment in the past: a date, a date and time (here, if it names no time zone), or how long ago it was."""
    if text is None:
        return None
    with contextlib.suppress(ConfigError):
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ConfigError(
            f"--{option} {text!r} is not a moment: write 2026-03-02, 2026-03-02T08:00Z, or how long ago it was: 2h"
        ) from None


#: What lists each kind of work, and the letter of its ids.
ID_FORMS = {
    "job": ("", "tidemill jobs"),
    "run": ("r", "tidemill runs"),
    "batch": ("b", "tidemill batch"),
    "alert": ("a", "tidemill monitor alerts"),
    "dead letter": ("d", "tidemill stream dead-letters"),
}


def id_number(kind: str, text: str) -> int:
    """The number of an id as people write it: 12, or with the letter of its kind, such as r12."""
    letter, listed_by = ID_FORMS[kind]
    digits = text.removeprefix(letter)
    if digits.isascii() and digits.isdigit():
        return int(digits)
    if kind == "job" and text[:1] in ("r", "b", "a", "d") and text[1:].isdigit():
        raise ConfigError(f"{text!r} is not a job: `tidemill explain {text}` says what it is")
    article = "an" if kind == "alert" else "a"
    raise ConfigError(f"{text!r} is not {article} {kind}: write it as `{listed_by}` shows it, such as {letter}12")


def run_number(id: str) -> int:
    """The number of a run as people write it: r12, or 12."""
    return id_number("run", id)


def id_parameter(kind: str, help: str) -> Parameter:
    """A parameter that takes ids of this kind, as people write them."""

    def read(wanted: Any, tokens: Sequence[Token]) -> Any:
        try:
            numbers = [id_number(kind, each.value) for each in tokens]
        except ConfigError as error:
            raise ValueError(str(error)) from error  # which the command line takes for what was not understood
        return numbers if get_origin(wanted) is list else numbers[0]

    return Parameter(help=help, converter=read)


#: Fields with the id of something else, wherever they occur.
IDS: Mapping[str, str] = {"run": "run", "batch": "batch"}


def options_of(
    arguments: type[msgspec.Struct],
    *,
    positional: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    only_positional: bool = False,
    ids: Mapping[str, str] = IDS,
) -> Callable[[Command], Command]:
    """Call a command with `arguments` made from its options.

    The fields in `positional` are required and given by their place, those in `without` are not options, and with
    `only_positional` no other field is. A field that the command has as a parameter of its own is left to it: until
    the command puts its value in, it has its default, or None. `ids` says of which kind the ids in a field are.
    """

    def decorate(command: Command) -> Command:
        own = parameters_of(command)[1:]
        left = {*without, *(each.name for each in own)}
        if only_positional:
            left |= {*arguments.__struct_fields__} - {*positional}
        fields = {each.name: each for each in msgspec.structs.fields(arguments) if each.name not in left}
        if shared := fields.keys() & _names_of_groups(own):
            raise TypeError(f"{command.__name__}: {min(shared)} is an option of the connection already")
        missing = {each.name: None for each in msgspec.structs.fields(arguments) if each.required}
        placed = [_parameter(fields[name], inspect.Parameter.POSITIONAL_ONLY, ids) for name in positional]
        named = [
            _parameter(field, inspect.Parameter.KEYWORD_ONLY, ids)
            for name, field in fields.items()
            if name not in positional
        ]

        def run(*values: Any, **options: Any) -> Any:
            given = {**missing, **dict(zip(positional, values, strict=False))}
            given |= {name: options.pop(name) for name in list(options) if name in fields}
            given |= {name: read_moment(given[name], name) for name in PAST_MOMENTS & given.keys()}
            given = {name: value for name, value in given.items() if value is not None or name in missing}
            return command(arguments(**given), *values[len(positional) :], **options)

        return with_parameters(run, command, [*placed, *own, *named])

    return decorate


def parameters_of(command: Command) -> list[inspect.Parameter]:
    """The parameters of a command, with their types in place of the texts that name them."""
    hints = get_type_hints(command, include_extras=True)
    return [each.replace(annotation=hints[each.name]) for each in inspect.signature(command).parameters.values()]


def with_parameters(run: Command, command: Command, parameters: Iterable[inspect.Parameter]) -> Command:
    """`run` as it is offered on the command line: with the name and help of `command`, and these parameters."""
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    given = sorted(parameters, key=lambda each: each.kind)
    returned = get_type_hints(command).get("return")
    signature = inspect.Signature(given, return_annotation=returned)
    run.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess] - cyclopts reads it
    run.__annotations__ = {each.name: each.annotation for each in given}
    return run


def _names_of_groups(parameters: Iterable[inspect.Parameter]) -> set[str]:
    """The options that parameters such as `connection` stand for."""
    groups = [each.annotation for each in parameters if dataclasses.is_dataclass(each.annotation)]
    return {field.name for group in groups for field in dataclasses.fields(group)}


def _parameter(field: msgspec.structs.FieldInfo, kind: Any, ids: Mapping[str, str]) -> inspect.Parameter:
    bare, help = bare_type(field.type), _help(field.type)
    if field.name in PAST_MOMENTS:
        bare, help = str | None, f"{help} A date and time, or how long ago: 2h."
    placed = kind is inspect.Parameter.POSITIONAL_ONLY
    default = inspect.Parameter.empty if field.required or placed else field.default
    if get_origin(bare) is tuple:
        bare, default = list[get_args(bare)[0]], None
    if default is None and type(None) not in get_args(bare):
        bare = bare | None
    shown = id_parameter(ids[field.name], help) if field.name in ids else Parameter(help=help)
    return inspect.Parameter(field.name, kind, default=default, annotation=Annotated[bare, shown])


def _help(kind: Any) -> str:
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((each.description for each in notes if isinstance(each, msgspec.Meta) and each.description), "")
