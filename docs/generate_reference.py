"""Writes the reference pages from the code: Python API, commands, HTTP and gRPC, SQL functions, settings, metrics."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

#: The public modules, as users import them.
MODULES = (
    "tidemill",
    "tidemill.flows",
    "tidemill.dags",
    "tidemill.streams",
    "tidemill.sources",
    "tidemill.pipelines",
    "tidemill.monitors",
    "tidemill.testing",
)


def write_reference(folder: Path) -> None:
    """Write all pages."""
    folder.mkdir(exist_ok=True)
    pages = {
        "python": python_page(),
        "commands": commands_page(),
        "http": http_page(),
        "sql": sql_page(),
        "settings": settings_page(),
        "metrics": metrics_page(),
    }
    for name, lines in pages.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n")


def python_page() -> Iterator[str]:
    """Every public name with its signature and documentation."""
    yield "# Python API\n"
    for name in MODULES:
        module = importlib.import_module(name)
        yield f"## {name}\n"
        for public in sorted(getattr(module, "__all__", ())):
            yield from describe(public, getattr(module, public), level=3)


def describe(name: str, thing: Any, *, level: int) -> Iterator[str]:
    """One name: signature, docstring, and the public methods of a class."""
    if not (inspect.isclass(thing) or callable(thing)):
        return
    yield f"{'#' * level} {name}\n"
    yield f"```python\n{name}{signature(thing)}\n```\n"
    yield from docstring(thing)
    if inspect.isclass(thing) and thing.__module__.startswith("tidemill"):
        for method, body in vars(thing).items():
            if not method.startswith("_") and (inspect.isfunction(body) or isinstance(body, staticmethod)):
                yield f"```python\n{name}.{method}{signature(getattr(thing, method))}\n```\n"
                yield from docstring(body)


def signature(thing: Any) -> str:
    try:
        return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(thing)))  # Annotations are stored as text.
    except (ValueError, TypeError):
        return "(...)"


def docstring(thing: Any) -> Iterator[str]:
    """Documentation as it stands in the code, so that columns stay columns."""
    text = inspect.getdoc(thing)
    if text and not text.startswith(("A subclass of", "str(object", "Create and return")):
        first, _, rest = text.partition("\n\n")
        yield f"{' '.join(first.split())}\n"
        if rest:
            yield f"```text\n{rest}\n```\n"


def commands_page() -> Iterator[str]:
    """Every command with its options."""
    from tidemill.cli.main import build

    yield "# Commands\n"
    yield (
        "Every command takes `--database-url`, `--directory`, `--schema` and `--application`; those that act or list "
        "take `--server URL` with `--token-file FILE` as well.\n"
    )
    yield from describe_commands(build(whole=True), "tidemill")


def describe_commands(cli: Any, path: str) -> Iterator[str]:
    for name in sorted(cli):
        if name.startswith("-"):
            continue
        command = cli[name]
        words = f"{path} {name}"
        if command.default_command is not None:
            yield f"## {words}\n"
            yield from docstring(command.default_command)
            arguments = [line for each in command.assemble_argument_collection() for line in describe_option(each)]
            if arguments:
                yield "| option | |\n|---|---|\n" + "\n".join(arguments) + "\n"
        yield from describe_commands(command, words)


def describe_option(argument: Any) -> Iterator[str]:
    text = (argument.parameter.help or "").replace("|", "\\|")
    names = [name for name in argument.names if not name.startswith(("--no-", "--empty-"))]
    groups = {getattr(group, "name", group) for group in argument.parameter.group or ()}
    if names and text and argument.parameter.show is not False and not groups & {"Database", "Server"}:
        yield f"| `{', '.join(names)}` | {text} |"


def http_page() -> Iterator[str]:
    """Every operation by its noun, with the role that it needs and its arguments."""
    from tidemill.ops.operator.registry import all_operations
    from tidemill.server.rpc.proto import service_of

    yield "# HTTP and gRPC\n"
    yield (
        "Each operation is an HTTP request below `/api/v1` and a method of a gRPC service. Fields that are not in the "
        "path are in the query of a GET or DELETE request and in the JSON body of others. The OpenAPI document of a "
        "running server, `/api/v1/openapi.json`, has results, statuses and examples as well; the gRPC services are in "
        "`tidemill/server/rpc/operations.proto`.\n"
    )
    operations = sorted(all_operations(), key=lambda each: (service_of(each), each.path, each.method))
    for service in dict.fromkeys(service_of(each) for each in operations):
        yield f"## {service}\n"
        for operation in (each for each in operations if service_of(each) == service):
            yield f"### {operation.method} {operation.path}\n"
            method = operation.name.title().replace("_", "")
            yield f"`{service}.{method}`, for the role {operation.role}. {' '.join(operation.description.split())}\n"
            fields = [describe_field(each) for each in msgspec.structs.fields(operation.args)]
            if fields:
                yield "| field | |\n|---|---|\n" + "\n".join(fields) + "\n"


def describe_field(field: msgspec.structs.FieldInfo) -> str:
    notes = [each for each in getattr(field.type, "__metadata__", ()) if isinstance(each, msgspec.Meta)]
    text = next((each.description for each in notes if each.description), "").replace("|", "\\|")
    return f"| `{field.encode_name}`{' (required)' if field.required else ''} | {text} |"


def sql_page() -> Iterator[str]:
    """Every SQL function that has a comment: those are for users."""
    from tidemill.store import migrate

    yield "# SQL functions\n"
    yield "In the schema of the application, for triggers and programs in other languages: see [jobs](../jobs.md).\n"
    folder = Path(migrate.__file__).parent / "migrations"
    source = "\n".join(path.read_text() for path in sorted(folder.glob("*.sql")) if ".down." not in path.name)
    for name, text in sorted(
        dict(re.findall(r"COMMENT ON FUNCTION tidemill\.(\w+)(?:\([^)]*\))? IS\s+'([^']+)'", source)).items()
    ):
        made = re.findall(
            rf"CREATE (?:OR REPLACE )?FUNCTION tidemill\.{name}\(([^$;]*?)\)\s*RETURNS ([\w\[\]]+)", source
        )
        arguments, returned = made[-1]
        yield f"## tidemill.{name}\n"
        listed = ",\n    ".join(each.strip() for each in " ".join(arguments.split()).split(", "))
        yield f"```sql\ntidemill.{name}(\n    {listed}\n) RETURNS {returned}\n```\n"
        yield f"{text}\n"


def settings_page() -> Iterator[str]:
    """Every setting, its variable and default."""
    from tidemill.engine.settings import Settings

    yield "# Settings\n"
    yield "Arguments of `App(...)`, then variables of the environment, then `[tool.tidemill]` in pyproject.toml.\n"
    yield "| setting | variable | default | |\n|---|---|---|---|"
    described = re.compile(r"^    (\w+): [^\n]*\n    \"\"\"(.*?)\"\"\"", re.DOTALL | re.MULTILINE)
    texts = dict(described.findall(inspect.getsource(Settings)))
    for field in msgspec.structs.fields(Settings):
        text = " ".join(texts.get(field.name, "").split()).replace("|", "\\|")
        yield f"| `{field.name}` | `TIDEMILL_{field.name.upper()}` | `{field.default!r}` | {text} |"


def metrics_page() -> Iterator[str]:
    """Every metric of `/metrics`."""
    from tidemill.engine.telemetry import exposition, stream_metrics

    yield "# Metrics\n"
    yield "`tidemill up --metrics`, `tidemill server` at `/metrics`, in the format of Prometheus.\n"
    yield "| metric | |\n|---|---|"
    source = inspect.getsource(exposition) + inspect.getsource(stream_metrics)
    for name, text in sorted(set(re.findall(r"\"(tidemill_\w+)\",\s*\"([^\"]+)\"", source))):
        yield f"| `{name}` | {text} |"
