"""Reads the logs of a day: notes of people, in Markdown or plain, and what programs write, each in its form.

What a program wrote becomes `INFO message`, without its time, host and process; a note stays as it is:

    2026-03-02T09:01:00Z ERROR pay: timed out            ERROR pay: timed out
    Mar  4 09:14:09 quay sshd[884]: Failed password      INFO Failed password
    {"time": "…", "level": "warn", "msg": "disk full"}   WARN disk full
    10.0.0.1 - - [03/Mar/…] "GET /berths HTTP/1.1" 502   ERROR GET /berths: 502
    - [ ] Order new fenders                              TODO Order new fenders

Of a traceback only its last line is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from markdown_it import MarkdownIt

#: The end of a picture's name.
PICTURE = r"[.](png|jpe?g|gif|webp|svg)$"
MARKDOWN = (".md", ".markdown")
LONGEST_LINE = 1000  # characters of a sentence that are shown

_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?\s*(?:Z|UTC|[+-]\d{2}:?\d{2})?"
_TIME = re.compile(rf"^\[?(?:\d{{4}}[-/]\d{{2}}[-/]\d{{2}}(?:[T ]{_CLOCK})?|{_CLOCK})\]?[:,]?(?:\s+|$)")
_SYSLOG = re.compile(
    r"(?:[A-Z][a-z]{2}\s+\d{1,2}\s+\d{2}:\d{2}:\d{2}\s+)\S+\s+[\w./@-]+(?:\[\d+\])?:\s*(?:\[\s*\d+\.\d+\]\s*)?"
)
_LEVEL = re.compile(r"[\[(<]?(TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|ERR|CRITICAL|FATAL)\b[\])>]?\s*[:|-]?\s*")
_LOGGER = re.compile(r"^(?:- )?[\w.-]+ - (?=[A-Z]+ - )")  # Python's: time - name - LEVEL - message
_ACCESS = re.compile(r'\S+ \S+ \S+ \[[^\]]+\] "([A-Z]+ [^"]*?)(?: HTTP/[\d.]+)?" (\d{3})\b')
_FRAME = re.compile(r"\s+(File \"|at |\.\.\. \d+ more|raise |return |self\.|[~^]+$)|\s{2,}\S")
_BOX = re.compile(r"\[([ xX])\] ")  # of a list of things to do
_LEVELS = {"WARN": "WARN", "WARNING": "WARN", **dict.fromkeys(("ERR", "ERROR", "CRITICAL", "FATAL"), "ERROR")}


def is_picture(name: str) -> bool:
    """Whether a file is a picture."""
    return re.search(PICTURE, name, re.IGNORECASE) is not None


def is_log(name: str) -> bool:
    """Whether a file is a text about the day."""
    return name.lower().endswith((".txt", ".log", *MARKDOWN))


def read_log(name: str, text: str) -> str:
    """The sentences of a log, line by line."""
    lines = _read_markdown(text) if name.lower().endswith(MARKDOWN) else _read_lines(text)
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…" for line in lines if line)


def decode_text(data: bytes) -> str:
    """The text of a file, none of a binary one: one bad byte must not keep a day from its post."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace").replace("\0", "")
    return "" if b"\0" in data else data.decode("utf-8-sig", "replace")


def _read_markdown(text: str) -> Iterator[str]:
    """The paragraphs and entries of notes, without headings, code and marks."""
    before = ""
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "inline" and before != "heading_open":
            parts = [" " if part.type == "softbreak" else part.content for part in token.children or ()]
            yield _read_box("".join(parts).strip())
        before = token.type


def _read_box(line: str) -> str:
    box = _BOX.match(line)
    if box is None:
        return line
    return line[box.end() :] if box[1] != " " else f"TODO {line[box.end() :]}"


def _read_lines(text: str) -> Iterator[str]:
    is_trace = False
    for line in text.splitlines():
        if line.startswith("Traceback (most recent call last)"):
            is_trace = True
        elif is_trace and _FRAME.match(line):
            continue
        elif is_trace:
            is_trace = False
            yield f"ERROR {line.strip()}"
        elif re.match(r"\s+at \S+\(", line):  # A frame of Java or JavaScript.
            continue
        else:
            yield _read_line(line.strip())


def _read_line(line: str) -> str:
    if line.startswith("{") and (said := _read_json(line)) is not None:
        return said
    if access := _ACCESS.match(line):
        level = "ERROR" if access[2][0] == "5" else "INFO"
        return f"{level} {access[1].partition('?')[0]}: {access[2]}"
    rest = _SYSLOG.sub("", line, count=1)
    rest = _LOGGER.sub("", _TIME.sub("", rest, count=1), count=1)
    level = _LEVEL.match(rest)
    if level is not None:
        rest = rest[level.end() :]
    if rest == line:
        return _read_box(re.sub(r"^[-*•] ", "", line))
    return _marked(level[1] if level is not None else "INFO", rest)


def _read_json(line: str) -> str | None:
    """What a line in JSON says; None if it is none, or says nothing."""
    try:
        held = json.loads(line)
    except ValueError:
        return None
    said = next((held[name] for name in ("msg", "message", "event", "text") if isinstance(held.get(name), str)), None)
    return _marked(str(held.get("level") or held.get("severity") or "INFO").upper(), said) if said else None


def _marked(level: str, said: str) -> str:
    """A line of a program with its level; what only its programmers want to know is left out."""
    return "" if level in ("TRACE", "DEBUG") or not said else f"{_LEVELS.get(level, 'INFO')} {said}"
