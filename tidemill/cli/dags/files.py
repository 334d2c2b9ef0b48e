"""`tidemill dag check` and `tidemill dag draw`: dags before they run, in files and in applications."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tidemill.app import App
from tidemill.cli.arguments import Json, run_number
from tidemill.cli.connection_options import ANYWHERE, HERE, ServerOptions
from tidemill.cli.render import out as result, print_json
from tidemill.cli.run.role_process import application
from tidemill.core.codec import encode
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError
from tidemill.core.expressions.paths import Path as Steps
from tidemill.dags.definition.files import load_dag, located, problems_in
from tidemill.dags.definition.model import Dag, SubDag, TaskNode
from tidemill.dags.errors import DagError
from tidemill.dags.view.drawing import draw_dag, draw_dag_svg
from tidemill.ops.runs.dags import GetTree, get_dag_tree

FILES = (".yaml", ".yml", ".json")


def check(
    file: Annotated[str, Parameter(help="A JSON or YAML file.")],
    /,
    *,
    app: Annotated[
        str | None,
        Parameter(help="The application: its tasks must be those that the nodes name, and refs may be its own."),
    ] = None,
    json: Json = False,
) -> int:
    """Say everything that is wrong with a dag file, each with its line."""
    known = application(app, HERE.arguments()) if app else None
    refs = known.declarations.hooks.ref_resolver if known else None
    problems = problems_in(file, refs=refs)
    dag = None if problems else load_dag(file, refs=refs)
    if dag is not None and known is not None:
        problems = located(file, [DagError(place, problem) for place, problem in unknown_tasks(dag, known)])
    if json:
        rows = [
            {"file": each.file, "line": each.line, "place": each.place, "problem": each.problem} for each in problems
        ]
        print_json({"ok": not problems, "problems": rows})
    else:
        for problem in problems:
            sys.stderr.write(f"error: {problem}\n")
        if dag is not None and not problems:
            result().print(f"{file}: dag {dag.name} is valid: {_nodes_of(dag)}")
    return 1 if problems else 0


def draw(
    what: Annotated[
        str | None,
        Parameter(
            help="A JSON or YAML file, or the name of a dag that the application declares. Not needed with --run."
        ),
    ] = None,
    /,
    *,
    app: Annotated[
        str | None, Parameter(help="The application that declares it, or brings refs of its own: app.py.")
    ] = None,
    out: Annotated[
        str, Parameter(help="Where to: nightly.svg, nightly.mmd, or - for Mermaid text on the terminal.")
    ] = "-",
    run: Annotated[str | None, Parameter(help="The run to draw, as `tidemill runs` shows it: r12.")] = None,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Draw a dag as Mermaid text or as an SVG picture; with a run, coloured by how far it is."""
    if out != "-" and Path(out).suffix not in (".svg", ".mmd", ".md"):
        raise ConfigError(f"--out {out}: the name of a picture ends in .svg or .mmd")
    known = application(app, connection.arguments()) if app else None
    refs = known.declarations.hooks.ref_resolver if known else None
    if run is None:
        if what is None:
            raise ConfigError("name what to draw: a file, a dag, or --run r12")
        dag, nodes = asyncio.run(find_dag(what, known)), []
    else:
        found = connection.do(get_dag_tree, GetTree(id=run_number(run)), app=known)
        dag, nodes = Dag.from_json(encode(found.definition)), found.nodes
        if what is not None and asyncio.run(find_dag(what, known)) != dag:
            raise ConfigError(f"run {run} was started with another definition: leave out {what} to draw that")
    svg = Path(out).suffix == ".svg"
    text = (draw_dag_svg if svg else draw_dag)(dag, nodes, refs=refs)
    if out == "-":
        print(text)
        return
    try:
        Path(out).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error


def unknown_tasks(dag: Dag, known: App) -> Iterable[tuple[Steps, str]]:
    """The nodes whose task the application does not know, with their places."""
    for index, node in enumerate(dag.nodes):
        if isinstance(node, SubDag):
            for place, problem in unknown_tasks(node.dag, known):
                yield ("nodes", index, "dag", *place), problem
        elif isinstance(node, TaskNode) and known.declarations.tasks.get(node.task) is None:
            hint = did_you_mean(node.task, known.declarations.tasks)
            yield ("nodes", index, "task"), f"node {node.name!r}: app {known.name} knows no task {node.task!r}{hint}"


async def find_dag(what: str, known: App | None) -> Dag:
    """The dag that is meant: in a file, or by its name in an application."""
    if is_file(what):
        return load_dag(what, refs=None if known is None else known.declarations.hooks.ref_resolver)
    if known is None:
        raise ConfigError(f"{what!r} is not a file; for a dag of an application, add --app app.py")
    found = await known.runs.find_dag(what)
    if found is None:
        declared = ", ".join(known.runs.dags) or "none"
        raise ConfigError(
            f"there is no dag {what!r}, and no such file; app {known.name} declares with app.dag: "
            f"{declared}{did_you_mean(what, known.runs.dags)}"
        )
    return found


def is_file(what: str) -> bool:
    """Whether this means a file, and not a dag by its name."""
    return what.endswith(FILES) or Path(what).is_file()


def _nodes_of(dag: Dag) -> str:
    def count(each: Dag) -> int:
        return sum(1 + (count(node.dag) if isinstance(node, SubDag) else 0) for node in each.nodes)

    total = count(dag)
    return "1 node" if total == 1 else f"{total:,} nodes"
