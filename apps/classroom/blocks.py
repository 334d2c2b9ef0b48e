"""Block programs: from Blockly's XML or JSON to blocks, and from blocks to trees that can be compared and read.

Two profiles of a tree: the document's, with a node for every connection and without shadow blocks; and a corrected one,
in which connections and the numbers in shadow blocks are a part of their block's label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal
from xml.parsers import expat

import msgspec

from tidemill.monitors.decoders import Tree

Profile = Literal["document", "corrected"]
ROOT = "(program)"
EDGES = ("value", "statement", "next")
_BLOCKS = ("block", "shadow")
_STATEMENT = re.compile(r"(DO|STACK|SUBSTACK|ELSE|STATEMENT|BODY)\d*\Z", re.IGNORECASE)


class BadProgramError(ValueError):
    """A workspace that is neither Blockly's XML nor its JSON."""


class Block(msgspec.Struct, gc=False):
    """A block: its type and fields, and the blocks that hang on it by connection and slot."""

    type: str
    fields: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, str, Block], ...] = ()
    shadow: bool = False

    @property
    def label(self) -> str:
        """Type and fields in a line."""
        return " ".join([self.type, *(f"{name}={value}" for name, value in self.fields)])


class Program(msgspec.Struct):
    """What is in a workspace: its stacks of blocks."""

    stacks: tuple[Block, ...] = ()

    def walk(self, *, shadows: bool = False) -> Iterator[Block]:
        waiting = list(reversed(self.stacks))
        while waiting:
            block = waiting.pop()
            if block.shadow and not shadows:
                continue
            yield block
            waiting += [child for _, _, child in reversed(block.inputs)]


def read_program(workspace: Any) -> Program:
    """The program in a workspace: XML text, JSON text, or JSON that was read already."""
    if workspace is None or (isinstance(workspace, str) and not workspace.strip()):
        return Program()
    if isinstance(workspace, str) and workspace.lstrip().startswith("<"):
        return _from_xml(workspace)
    try:
        data = msgspec.json.decode(workspace) if isinstance(workspace, str) else workspace
        stacks = data.get("blocks", {}).get("blocks", [])
        return Program(tuple(_from_json(block) for block in stacks))
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise BadProgramError(f"this is not a workspace: {error}") from error


def _from_xml(text: str) -> Program:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise BadProgramError("this is not a workspace: it declares entities")
    reading = _Reading()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = reading.begin, reading.end
    parser.CharacterDataHandler = reading.text
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, UnicodeEncodeError) as error:
        raise BadProgramError(f"this is not a workspace: {error}") from error
    return Program(tuple(reading.tops))


class _Open:
    """An open element: a block, a field, a slot, or one that is ignored."""

    __slots__ = ("block", "fields", "kind", "name", "shadow", "statements", "text", "values")

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self.block: Block | None = None
        """The block in a slot, or the one that follows a block."""
        if kind in _BLOCKS:
            self.fields: list[tuple[str, str]] = []
            self.values: list[tuple[str, str, Block]] = []
            self.statements: list[tuple[str, str, Block]] = []
        else:
            self.shadow: Block | None = None
            self.text = ""


class _Reading:
    """Builds blocks as their elements end; without recursion, because stacks may be long."""

    def __init__(self) -> None:
        self.tops: list[Block] = []
        self._open: list[_Open] = []

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        kind = tag.rpartition(":")[2]
        self._open.append(_Open(kind, attributes.get("type", "?") if kind in _BLOCKS else attributes.get("name", "")))

    def text(self, said: str) -> None:
        if (around := self._open[-1]).kind == "field":
            around.text += said

    def end(self, _tag: str) -> None:
        done = self._open.pop()
        kind = done.kind
        if kind in _BLOCKS:
            self._made(done)
        elif self._open and (around := self._open[-1]).kind in _BLOCKS:
            if kind == "field":
                around.fields.append((done.name, done.text.strip()))
            elif kind == "next":
                around.block = done.block
            elif kind in EDGES and (held := done.block or done.shadow) is not None:
                (around.values if kind == "value" else around.statements).append((kind, done.name, held))

    def _made(self, done: _Open) -> None:
        inputs = [*done.values, *done.statements]
        if done.block is not None:
            inputs.append(("next", "", done.block))
        done.fields.sort()
        made = Block(done.name, tuple(done.fields), tuple(inputs), done.kind == "shadow")
        around = self._open[-1] if self._open else None
        if around is None or (len(self._open) == 1 and around.kind not in _BLOCKS):
            if not made.shadow:
                self.tops.append(made)
        elif around.kind == "next":
            around.block = around.block or (None if made.shadow else made)
        elif around.kind in EDGES:
            if made.shadow:
                around.shadow = made
            else:
                around.block = made


def _from_json(data: Any, *, shadow: bool = False) -> Block:
    chain = [data]
    while (following := (chain[-1].get("next") or {}).get("block")) is not None:
        chain.append(following)
    made: Block | None = None
    for each in reversed(chain):
        inputs: list[tuple[str, str, Block]] = []
        for slot, held in (each.get("inputs") or {}).items():
            kind = "statement" if _STATEMENT.match(slot) else "value"
            inner = held.get("block")
            if inner is not None or held.get("shadow") is not None:
                inputs.append((kind, slot, _from_json(inner or held["shadow"], shadow=inner is None)))
        inputs.sort(key=lambda part: EDGES.index(part[0]))
        if made is not None:
            inputs.append(("next", "", made))
        fields = sorted((str(name), _plain(value)) for name, value in (each.get("fields") or {}).items())
        made = Block(str(each["type"]), tuple(fields), tuple(inputs), shadow)
    assert made is not None  # noqa: S101
    return made


def _plain(value: Any) -> str:
    return str(value.get("id", value)) if isinstance(value, dict) else str(value)


# -- trees ----------------------------------------------------------------------------------------


def tree_of(program: Program, profile: Profile) -> Tree:
    """The tree of a program by a profile; several stacks hang under one root."""
    stacks = [stack for stack in program.stacks if not stack.shadow]
    nodes: list[tuple[str, str, int]] = [] if len(stacks) < 2 else [(ROOT, "", -1)]
    with_edges = profile == "document"
    waiting = [(stack, "", len(nodes) - 1) for stack in reversed(stacks)]
    while waiting:
        block, edge, parent = waiting.pop()
        if not with_edges:
            label = f"{edge}|{_fields(block)}|{_shadows(block)}"
        elif edge:
            nodes.append((edge, "", parent))
            parent, label = len(nodes) - 1, _fields(block)
        else:
            label = _fields(block)
        nodes.append((block.type, label, parent))
        place = len(nodes) - 1
        for kind, slot, child in reversed(block.inputs):
            if not child.shadow:
                waiting.append((child, f"{kind}:{slot}" if slot else kind, place))
    return Tree(nodes)


def _fields(block: Block) -> str:
    return " ".join(f"{name}={value}" for name, value in block.fields)


def _shadows(block: Block) -> str:
    """The values in the shadow blocks of a block's slots, mostly numbers."""
    return " ".join(f"{slot}={_inline(child, str)}" for _, slot, child in block.inputs if child.shadow)


@lru_cache(maxsize=2000)
def tree_of_text(workspace: str, profile: Profile) -> Tree:
    """The same from a workspace as text, with a cache."""
    return tree_of(read_program(workspace), profile)


# -- as text --------------------------------------------------------------------------------------


def stack_lines(stack: Block, depth: int = 0, *, name: Any = str) -> list[str]:
    """One stack as indented lines; blocks in slots follow their block on the same line."""
    told: list[str] = []
    block: Block | None = stack
    while block is not None:
        words = [name(block.type), *(f"{field}={value}" for field, value in block.fields)]
        words += [f"{slot}=({_inline(child, name)})" for kind, slot, child in block.inputs if kind == "value"]
        told.append("  " * depth + " ".join(words))
        for kind, _, child in block.inputs:
            if kind == "statement":
                told += stack_lines(child, depth + 1, name=name)
        block = next((child for kind, _, child in block.inputs if kind == "next"), None)
    return told


def _inline(block: Block, name: Any) -> str:
    parts = [*(value for _, value in block.fields), *(_inline(child, name) for _, _, child in block.inputs)]
    return f"{name(block.type)} {' '.join(parts)}".strip() if not block.shadow else " ".join(parts)


def types_of(program: Program) -> Sequence[str]:
    return sorted({block.type for block in program.walk()})
