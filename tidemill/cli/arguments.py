"""Options of a command from the arguments of an operation: one option per field, with the field's help.

@options_of(ListJobs)
def jobs(args: ListJobs, *, json: bool = False, place: Reach = ANYWHERE) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from cyclopts import Parameter

from tidemill.core.errors import ConfigError
from tidemill.ops.operator.operation import bare_type

Command = Callable[..., Any]


def run_number(id: str) -> int:
    """The number of a run as people write it: r12, or 12."""
    text = id.removeprefix("r")
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{id!r} is not a run: write it as `tidemill runs` shows it, such as r12")
    return int(text)


def options_of(
    arguments: type[msgspec.Struct], *, positional: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> Callable[[Command], Command]:
    """Call a command with `arguments` made from its options.

    The fields in `positional` are required and given by their place, those in `without` are not options. A field that
    the command has as a parameter of its own is left to it: until the command puts its value in, it has its default,
    or None.
    """

    def decorate(command: Command) -> Command:
        _, *own = inspect.signature(command).parameters.values()
        hints = get_type_hints(command, include_extras=True)
        left = {*without, *(each.name for each in own)}
        fields = {each.name: each for each in msgspec.structs.fields(arguments) if each.name not in left}
        missing = {each.name: None for each in msgspec.structs.fields(arguments) if each.required}
        placed = [_parameter(fields[name], inspect.Parameter.POSITIONAL_ONLY) for name in positional]
        named = [
            _parameter(field, inspect.Parameter.KEYWORD_ONLY)
            for name, field in fields.items()
            if name not in positional
        ]
        kept = [each.replace(annotation=hints[each.name]) for each in own]
        ahead = [each for each in kept if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        behind = [each for each in kept if each.kind is inspect.Parameter.KEYWORD_ONLY]

        def run(*values: Any, **options: Any) -> Any:
            given = {**missing, **dict(zip(positional, values, strict=False))}
            given |= {name: options.pop(name) for name in list(options) if name in fields}
            given = {name: value for name, value in given.items() if value is not None or name in missing}
            return command(arguments(**given), *values[len(positional) :], **options)

        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        signature = inspect.Signature([*placed, *ahead, *named, *behind], return_annotation=hints.get("return"))
        run.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess] - cyclopts reads it
        run.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        return run

    return decorate


def _parameter(field: msgspec.structs.FieldInfo, kind: Any) -> inspect.Parameter:
    bare = bare_type(field.type)
    placed = kind is inspect.Parameter.POSITIONAL_ONLY
    default = inspect.Parameter.empty if field.required or placed else field.default
    if get_origin(bare) is tuple:
        bare, default = list[get_args(bare)[0]], None
    if default is None and type(None) not in get_args(bare):
        bare = bare | None
    return inspect.Parameter(
        field.name, kind, default=default, annotation=Annotated[bare, Parameter(help=_help(field.type))]
    )


def _help(kind: Any) -> str:
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((each.description for each in notes if isinstance(each, msgspec.Meta) and each.description), "")
