"""The texts of the page: names of blocks, why to visit a student, and what the student has tried."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from apps.classroom.blocks import Block, Program
from apps.classroom.prompt import is_active, plain_type
from apps.classroom.student import STUCK, Facts

QUIET_AFTER = {
    "run": "after running the program",
    "pause": "after running the program",
    "code": "in the middle of changing the program",
    "reset": "after opening a project",
}
_GAPS = re.compile(r"[_\s]+")


def block_name(type: str) -> str:
    """A block's type as words: `vex_drive_for` is drive for."""
    return _GAPS.sub(" ", plain_type(type)).strip() or type


def why(triggers: Sequence[str], facts: Facts, change: float | None = None) -> str:
    """Why to go to a student, in a sentence: the gravest trigger first, then the others. It leaves out how long."""
    said = [_reason(trigger, facts, change) for trigger in triggers]
    sentence = said[0][0].upper() + said[0][1:]
    return sentence + "".join(f"; also {other}" for other in said[1:]) + "."


def _reason(trigger: str, facts: Facts, change: float | None) -> str:
    if trigger == "wheel-spin":
        on = f" on “{block_name(facts.focus)}”" if facts.focus else ""
        if facts.strategy != STUCK or not facts.streak_runs:
            return f"was stuck{on}"
        return f"stuck{on}: {_spun(facts.streak_runs, facts.streak_same)}"
    if trigger == "inactive":
        after = QUIET_AFTER.get(facts.episode or "", "")
        return f"gone quiet {after}".strip()
    if trigger == "big-rewrite":
        share = f" ({round(change * 100)} %)" if change is not None else ""
        return f"replaced most of the program between two runs{share}"
    return trigger.replace("-", " ")


def tried(facts: Facts) -> str:
    """What a student has tried: the blocks they changed lately, and how their runs went."""
    if not facts.runs:
        return "Nothing has been run yet."
    blocks = listed([f"“{block_name(type)}”" for type in reversed(facts.touched)])
    changed = f"changed {blocks}; " if blocks else ""
    told = f"of the last {_runs(facts.scored)} {facts.same} {'was' if facts.same == 1 else 'were'} without a change"
    sentence = f"{changed}{told if facts.scored else 'one run so far'}."
    return sentence[0].upper() + sentence[1:]


def together(block: str, students: Sequence[str]) -> str:
    """A group of students who are stuck on the same block."""
    return f"{listed(list(students))} are stuck on “{block_name(block)}”: one visit may help them all."


def listed(names: Sequence[str]) -> str:
    """Ann, Bo and Cy."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _spun(runs: int, same: int) -> str:
    """How many runs a stuck student made, and how many of them without any change."""
    if same == runs:
        return "1 run without a change" if runs == 1 else f"{runs} runs in a row without a change"
    return f"{_runs(runs)}, {same or 'none'} of them without a change"


# -- programs -------------------------------------------------------------------------------------


def program_lines(program: Program) -> list[tuple[int, str, bool]]:
    """A program as lines: the depth and the text of each, and whether its stack runs."""
    told: list[tuple[int, str, bool]] = []
    for stack in program.stacks:
        if not stack.shadow:
            runs = is_active(stack)
            told += [(depth, text, runs) for depth, text in _stack(stack, 0)]
    return told


def _stack(stack: Block, depth: int) -> list[tuple[int, str]]:
    told: list[tuple[int, str]] = []
    block: Block | None = stack
    while block is not None:
        told.append((depth, _line(block)))
        following: Block | None = None
        for kind, _, child in block.inputs:
            if kind == "statement":
                told += _stack(child, depth + 1)
            elif kind == "next":
                following = child
        block = following
    return told


def _line(block: Block) -> str:
    """One block with what is plugged into it: drive for 200 mm."""
    plugged = [_value(child) for kind, _, child in block.inputs if kind == "value"]
    return " ".join([block_name(block.type), *plugged, *(value for _, value in block.fields)])


def _value(block: Block) -> str:
    if block.shadow:
        return " ".join([*(value for _, value in block.fields), *(_value(child) for _, _, child in block.inputs)])
    return f"({_line(block)})"


def block_diff(before: Program, after: Program) -> list[dict[str, object]]:
    """Two programs beside each other, line by line: what stayed, was removed, was added, or has another value.

    Each line has `sign` (one of space, -, + and ~), `depth` and `text`; a line with another value also has `was`.
    """
    ones = [(depth, text) for depth, text, _ in program_lines(before)]
    others = [(depth, text) for depth, text, _ in program_lines(after)]
    told: list[dict[str, object]] = []
    for what, a, b, c, d in SequenceMatcher(None, ones, others, autojunk=False).get_opcodes():
        if what == "equal":
            told += [{"sign": " ", "depth": depth, "text": text} for depth, text in others[c:d]]
            continue
        went, came = ones[a:b], others[c:d]
        while went and came and _same_block(went[0], came[0]):
            depth, text = came.pop(0)
            told.append({"sign": "~", "depth": depth, "text": text, "was": went.pop(0)[1]})
        told += [{"sign": "-", "depth": depth, "text": text} for depth, text in went]
        told += [{"sign": "+", "depth": depth, "text": text} for depth, text in came]
    return told


def _same_block(one: tuple[int, str], other: tuple[int, str]) -> bool:
    """Whether two lines are the same block with another value: the same words, in the same place."""
    return one[0] == other[0] and _words(one[1]) == _words(other[1])


def _words(text: str) -> list[str]:
    return [word for word in text.split() if not any(letter.isdigit() for letter in word)]
