"""The present program in words for a language model: neutral facts, without what was inferred about the student."""

from __future__ import annotations

import re

from apps.classroom.blocks import Block, Program, stack_lines

_VENDOR = re.compile(r"\A(?:vexcode|vex|iq|v5|go|exp|aim|vr|robot)_+", re.IGNORECASE)
_BEGINS = re.compile(r"(^|_)(when|event|events|started|procedures_def)", re.IGNORECASE)


def plain_type(type: str) -> str:
    """A block's type without its vendor's prefixes."""
    while (found := _VENDOR.sub("", type)) != type and found:
        type = found
    return type


def is_active(stack: Block) -> bool:
    """Whether a stack runs: it begins with an event or defines a procedure."""
    return _BEGINS.search(plain_type(stack.type)) is not None


def playground_prompt(program: Program) -> str:
    """The program as indented trees: the stacks that run, and those that do not."""
    parts: list[str] = []
    for title, wanted in (("[Active]", True), ("[Orphaned]", False)):
        stacks = [stack for stack in program.stacks if not stack.shadow and is_active(stack) is wanted]
        told = [line for stack in stacks for line in stack_lines(stack, 1, name=plain_type)]
        parts += [title, *(told or ["  (none)"])]
    return "\n".join(parts)
