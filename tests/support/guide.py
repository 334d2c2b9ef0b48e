"""Runs the Python of a page as a reader would: `python -m tests.support.guide PAGE COMPANION`.

All blocks of a page share one namespace and one database, in the order of the page:

* a block without a bare `await`, and a call of `..._sync`, is plain code, which runs in a thread
* from the first `await` of a block on, the application runs
* functions that take `self` become the methods of a workflow
* a block that uses `ctx` is the body of a step or task: the companion's `body` runs it
* functions called `test_...` are called

The companion is a Python file with what the page takes for granted: its names and `body`; `prepare`, which is called
first; functions to call before the blocks of a section, and what a person does while they run (`BEFORE` and `DURING`,
by heading); `after`, which checks what the blocks have done; and the blocks that cannot run (`NOT_RUN`: heading to
reason).
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

Names = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]


def database_url() -> str:
    """The database of this page, for companions."""
    return os.environ["TIDEMILL_DATABASE_URL"]


class Block(msgspec.Struct, frozen=True):
    """One Python block of a page."""

    heading: str
    line: int
    """The number of its first line in the page."""
    source: str

    @property
    def awaits(self) -> bool:
        """Whether it awaits something outside of functions."""
        return any(_awaits(node) for node in ast.parse(self.source).body)


def blocks_of(page: Path) -> list[Block]:
    """The Python blocks of a page, with the heading that each is under."""
    found: list[Block] = []
    heading, language, lines = "", None, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            if language == "python":
                found.append(Block(heading, number - len(lines), "\n".join(lines)))
            language, lines = (line.removeprefix("```") if language is None else None), []
        elif language is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return found


def program_of(page: Path) -> str:
    """The blocks of a page that declare things, as one program; a block with a bare `await` uses what is declared."""
    return "\n\n".join(block.source for block in blocks_of(page) if not block.awaits)


async def run_page(page: Path, names: Names) -> None:
    """Run the blocks of a page; raises what the first wrong one raises."""
    before, during, not_run = (names.get(kind, {}) for kind in ("BEFORE", "DURING", "NOT_RUN"))
    blocks = blocks_of(page)
    unknown = {*before, *during, *not_run} - {block.heading for block in blocks}
    assert not unknown, f"{page.name} has no Python below {sorted(unknown)}"
    for block in blocks:
        if reason := not_run.get(block.heading):
            print(f"{page.name}:{block.line} is not run: {reason}")
            continue
        if prepare := before.get(block.heading):
            await prepare(names)
        await run_block(page, block, names, during.get(block.heading) if block.awaits else None)


async def run_block(
    page: Path, block: Block, names: Names, person: Callable[[Names], Coroutine[Any, Any, None]] | None = None
) -> None:
    tree = ast.increment_lineno(ast.parse(block.source), block.line - 1)
    tests = set(names)
    if _uses(tree, "ctx"):
        await names["body"](block.source, names)
        return
    methods = [node for node in tree.body if _is_method(node)]
    async with AsyncExitStack() as running, asyncio.TaskGroup() as group:
        if person is not None:
            group.create_task(person(names))
        app = None
        for node in tree.body:
            if node in methods:
                continue
            if _awaits(node) and names.get("app") is not app:
                await running.aclose()
                app = names["app"]
                await running.enter_async_context(app.running())
            await _execute([node], page, names, in_thread=not block.awaits or "_sync" in ast.unparse(node))
    if methods:
        await _execute(methods, page, names, within="Workflow")
    for name in sorted({*names} - tests):
        if name.startswith("test_"):
            await asyncio.to_thread(names[name])


async def _execute(
    body: list[ast.stmt], page: Path, names: Names, *, within: str | None = None, in_thread: bool = True
) -> None:
    if within is not None:
        part = ast.parse(f"class Part({within}): ...").body[0]
        assert isinstance(part, ast.ClassDef)
        part.body = body
        body = [ast.fix_missing_locations(part)]
    code = compile(ast.Module(body, []), str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        await eval(code, names)
    elif in_thread:
        await asyncio.to_thread(exec, code, names)
    else:
        exec(code, names)


def _uses(tree: ast.Module, name: str) -> bool:
    """Whether statements that are in no function use a name."""
    return any(
        isinstance(node, ast.Name) and node.id == name
        for statement in tree.body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for node in ast.walk(statement)
    )


def _is_method(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return [each.arg for each in node.args.args[:1]] == ["self"]


def _awaits(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return any(isinstance(each, ast.Await | ast.AsyncFor | ast.AsyncWith) for each in ast.walk(node))


def load(companion: Path, page: Path) -> Names:
    """The names of a companion, as those of the program that the page is about."""
    names: Names = {"__name__": page.stem.lower(), "__file__": str(Path.cwd() / "app.py")}
    if companion.exists():
        spec = importlib.util.spec_from_file_location(page.stem.lower(), companion)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[page.stem.lower()] = module
        spec.loader.exec_module(module)
        names = {**vars(module), **names}
    return names


async def main(page: Path, companion: Path) -> None:
    names = load(companion, page)
    if prepare := names.get("prepare"):
        await prepare(names)
    await run_page(page, names)
    if check := names.get("after"):
        await check(names)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
