"""Writes the reference pages of the site from the code: Python API, commands, HTTP, settings and metrics."""

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
    """Write all pages anew."""
    folder.mkdir(exist_ok=True)
    pages = {
        "python": python_page(),
        "commands": commands_page(),
        "http": http_page(),
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
    """Every operation, with the role that it needs."""
    from tidemill.ops.operator.registry import all_operations

    yield "# HTTP and gRPC\n"
    yield (
        "Each operation is an HTTP request below `/api/v1` and a gRPC method of the same name. The OpenAPI document of "
        "a running server, `/api/v1/openapi.json`, has arguments, results and statuses.\n"
    )
    yield "| request | operation | role | |\n|---|---|---|---|"
    for operation in sorted(all_operations(), key=lambda each: (each.path, each.method)):
        text = " ".join(operation.description.partition("\n\n")[0].split()).replace("|", "\\|")
        yield f"| `{operation.method} {operation.path}` | `{operation.name}` | {operation.role} | {text} |"


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
