"""Block programs: from Blockly's XML or JSON to blocks, and from blocks to trees that can be compared and read.

Two profiles of a tree: the document's, with a node for every connection and without shadow blocks; and a corrected one,
in which connections and the numbers in shadow blocks are a part of their block's label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal
from xml.etree import ElementTree

import msgspec

from tidemill.monitors.decoders import Tree

Profile = Literal["document", "corrected"]
ROOT = "(program)"
EDGES = ("value", "statement", "next")
_STATEMENT = re.compile(r"(DO|STACK|SUBSTACK|ELSE|STATEMENT|BODY)\d*\Z", re.IGNORECASE)


class BadProgramError(ValueError):
    """A workspace that is neither Blockly's XML nor its JSON."""


class Block(msgspec.Struct):
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
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - without entities there is nothing to expand
    except ElementTree.ParseError as error:
        raise BadProgramError(f"this is not a workspace: {error}") from error
    tops = [root] if _name(root.tag) == "block" else [child for child in root if _name(child.tag) == "block"]
    return Program(tuple(_block(top) for top in tops))


def _block(element: Any) -> Block:
    """A block and all that hangs on it. Stacks are walked, not recursed into: they may be long."""
    chain: list[tuple[Any, list[tuple[str, str]], list[Any], list[Any]]] = []
    following = element
    while following is not None:
        block, following = following, None
        fields: list[tuple[str, str]] = []
        values: list[Any] = []
        statements: list[Any] = []
        for child in block:
            kind = _name(child.tag)
            if kind == "field":
                fields.append((child.get("name", ""), (child.text or "").strip()))
            elif kind == "value":
                values.append(child)
            elif kind == "statement":
                statements.append(child)
            elif kind == "next":
                following = next((held for held in child if _name(held.tag) == "block"), None)
        chain.append((block, fields, values, statements))
    made: Block | None = None
    for block, fields, values, statements in reversed(chain):
        inputs = [
            (kind, slot.get("name", ""), _block(held))
            for kind, slots in (("value", values), ("statement", statements))
            for slot in slots
            if (held := _held(slot)) is not None
        ]
        if made is not None:
            inputs.append(("next", "", made))
        fields.sort()
        made = Block(block.get("type", "?"), tuple(fields), tuple(inputs), _name(block.tag) == "shadow")
    assert made is not None  # noqa: S101 - a chain begins with its own element
    return made


def _held(slot: Any) -> Any:
    """The block in a slot, or its shadow where there is none."""
    found = {_name(child.tag): child for child in slot}
    return found.get("block", found.get("shadow"))


@lru_cache(maxsize=1000)
def _name(tag: str) -> str:
    """A tag without its namespace."""
    return tag.rpartition("}")[2]


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
    make = _with_edges if profile == "document" else _without_edges
    stacks = [make(stack, "") for stack in program.stacks if not stack.shadow]
    if not stacks:
        return Tree.of(None)
    return Tree.of(stacks[0] if len(stacks) == 1 else (ROOT, "", stacks))


def _fields(block: Block) -> str:
    return " ".join(f"{name}={value}" for name, value in block.fields)


def _shadows(block: Block) -> str:
    """What stands in the shadow blocks of a block's slots: mostly numbers."""
    return " ".join(f"{slot}={_inline(child, str)}" for _, slot, child in block.inputs if child.shadow)


def _with_edges(block: Block, _edge: str) -> tuple[str, str, list[Any]]:
    return _built(
        block,
        lambda b: [child for child in b.inputs if not child[2].shadow],
        lambda b, edge, children: (b.type, _fields(b), children),
        lambda edge, node: (edge, "", [node]),
    )


def _without_edges(block: Block, _edge: str) -> tuple[str, str, list[Any]]:
    return _built(
        block,
        lambda b: [child for child in b.inputs if not child[2].shadow],
        lambda b, edge, children: (b.type, f"{edge}|{_fields(b)}|{_shadows(b)}", children),
        lambda edge, node: node,
    )


def _built(block: Block, inputs: Any, node: Any, connected: Any) -> Any:
    """A tree from the leaves up, without recursion."""
    order: list[tuple[Block, str, int]] = []
    waiting: list[tuple[Block, str]] = [(block, "")]
    while waiting:
        each, edge = waiting.pop()
        children = inputs(each)
        order.append((each, edge, len(children)))
        waiting += [(child, f"{kind}:{slot}" if slot else kind) for kind, slot, child in children]
    done: list[Any] = []
    for each, edge, count in reversed(order):
        children = [done.pop() for _ in range(count)][::-1] if count else []
        made = node(each, edge, children)
        done.append(made if each is block else connected(edge, made))
    return done[0]


@lru_cache(maxsize=2000)
def tree_of_text(workspace: str, profile: Profile) -> Tree:
    """The same from a workspace as text; the newest are remembered."""
    return tree_of(read_program(workspace), profile)


# -- for people -----------------------------------------------------------------------------------


def stack_lines(stack: Block, depth: int = 0, *, name: Any = str) -> list[str]:
    """One stack as indented lines; what is plugged into a block stands behind it."""
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
