"""Writes texts: with a language model if one is configured, otherwise by picking the most typical sentences.

The offline writer invents nothing: every sentence of its output is in its input. Of sentences that are nearly the same
it takes one, and says how many there were, and of what. Notes of people come before lines of programs.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from urllib.parse import quote

from markdown_it import MarkdownIt

from apps.autoblog.site import escape_markdown, plain_text, read_post, write_front_matter
from tidemill.pipelines.workflows.llm import ask, is_configured

SUMMARY_PROMPT = """Summarise the log of {date} below in one paragraph of plain sentences.
Say what was done, what went wrong and what is left. Add nothing that is not in the log.

{text}"""
POST_PROMPT = """Write a short blog post in Markdown about {date} from this summary. Begin with a title.
Add nothing that is not in the summary.

{text}"""
SPEECH_PROMPT = """Turn this blog post into what a podcast's speaker reads aloud, in short paragraphs of plain text.

{text}"""

OFFLINE = "offline: sentences picked by the words that they share"
SENTENCES = 9
LONG = 6  # sentences of which the body leaves out those of the title and the lead
#: The end of a picture's name.
PICTURE = r"[.](png|jpe?g|gif|webp|svg)$"
MOST_OF_ONE = 2  # sentences that begin with the same words
ALIKE = 0.65  # the share of their words that two sentences of one kind have in common
MOST_NAMED = 4  # things that a kind of sentences is about, beside the first
_HEADINGS: tuple[tuple[str, frozenset[str]], ...] = (
    (
        "What went wrong",
        frozenset(["lost", "longer", "restarted", "failed", "error", "broken", "crashed", "slow", "down", "wrong"]),
    ),
    (
        "What is open",
        frozenset(["wants", "asked", "tomorrow", "todo", "question"]),
    ),
    ("What was done", frozenset()),
)
_WORD = re.compile(r"[^\W\d_]{3,}")
_PICTURES = re.compile(r"^!\[[^\]\n]*\]\([^)\n]*\)$", re.MULTILINE)
_STAMP = re.compile(
    r"^\s*(?:\[?(?:\d{4}-\d{2}-\d{2}[T ])?\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?\]?\s*)?"
    r"(?:\[?(?:INFO|DEBUG|WARN(?:ING)?|ERROR)\b\]?:?\s*)?",
    re.MULTILINE,
)
_OPENING = re.compile(r"^\d{4}-\d{2}-\d{2}, from \d+ logs?\.\s*")
_BOX = re.compile(r"^\[[ xX]\] ")  # of a list of things to do
_ASIDE = re.compile(r"\([^)]*\)")  # such as the author of a commit: it says nothing about what was done
_MORE = re.compile(r"\s*\(and \d+ more like it[^)]*\)")
_COMMON = frozenset(
    {"the", "and", "for", "that", "with", "this", "was", "were", "are", "has", "have", "had", "not", "but", "from"}
)


def describe_writer() -> str:
    """The name of the writer. It counts as code, so that texts are written again when it changes."""
    return "language model" if is_configured() else OFFLINE


def is_picture(name: str) -> bool:
    """Whether a file is a picture."""
    return re.search(PICTURE, name, re.IGNORECASE) is not None


def is_log(name: str) -> bool:
    """Whether a file is a text about the day."""
    return name.lower().endswith((".txt", ".md", ".markdown", ".log"))


def read_log(name: str, text: str) -> str:
    """The sentences of a log, line by line: of Markdown without headings and marks."""
    if not name.lower().endswith((".md", ".markdown")):
        return text
    lines, tokens = [], MarkdownIt("commonmark").parse(text)
    for before, token in pairwise(tokens):
        if token.type == "inline" and before.type != "heading_open":
            parts = [" " if part.type == "softbreak" else part.content for part in token.children or ()]
            lines.append(_BOX.sub("", "".join(parts)))
    return "\n".join(lines)


async def summarise(date: str, logs: Sequence[str], writer: str, pictures: Sequence[str] = ()) -> str:
    """One paragraph about a day, and a line in Markdown for each picture."""
    text = "\n".join(logs)
    shown = "".join(f"\n![{_caption(name)}](../site/images/{date}/{quote(name)})" for name in pictures)
    if writer != OFFLINE:
        return await asyncio.to_thread(ask, SUMMARY_PROMPT.format(date=date, text=text)) + shown
    picked = pick_sentences(text, SENTENCES)
    return f"{date}, from {len(logs)} {'log' if len(logs) == 1 else 'logs'}. " + " ".join(picked) + f"\n{shown}"


def _caption(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.rpartition(".")[0]).strip()


async def compose(date: str, summary: str, writer: str) -> str:
    """A post about a day, with its pictures."""
    pictures = "".join(f"\n\n{line}" for line in _PICTURES.findall(summary))
    summary = _PICTURES.sub("", summary).rstrip()
    if writer != OFFLINE:
        post = read_post(date, await asyncio.to_thread(ask, POST_PROMPT.format(date=date, text=summary)))
        return write_front_matter(date, post.title, post.summary, post.body + pictures)
    sentences = split_sentences(_OPENING.sub("", summary))
    title = _MORE.sub("", sentences[0]).rstrip(".") if sentences else "A quiet day"
    lead = sentences[1:3] or sentences
    # What the title and the lead say is not said again, unless that leaves too little.
    rest = sentences[3:] if len(sentences) >= LONG else sentences
    parts: dict[str, list[str]] = {heading: [] for heading, _ in _HEADINGS}
    for sentence in rest:
        words = set(_words(sentence.replace("no longer", "")))
        heading = next(heading for heading, typical in _HEADINGS if words & typical or not typical)
        parts[heading].append(f"- {escape_markdown(sentence)}")
    body = "\n\n".join(f"## {heading}\n\n" + "\n".join(points) for heading, points in parts.items() if points)
    teaser = _MORE.sub("", " ".join(lead))  # In a list of posts, how many others there were says nothing.
    return write_front_matter(date, title, teaser, f"{body}{pictures}\n\n*Put together {writer}.*")


async def speak(date: str, post: str, writer: str) -> str:
    """The text of a post as a speaker reads it aloud."""
    if writer != OFFLINE:
        return await asyncio.to_thread(ask, SPEECH_PROMPT.format(text=post))
    read = read_post(date, post)
    plain = plain_text(_PICTURES.sub("", read.body))
    lines = [line if line[-1] in ".!?" else f"{line}." for line in plain.splitlines() if line.strip()]
    told = [f"{read.title}.", *([] if read.summary in plain else [read.summary]), *lines]
    return f"Welcome to the digest of {date}.\n\n" + "\n\n".join(told) + "\n"


def pick_sentences(text: str, most: int) -> list[str]:
    """One sentence of each kind: first those that people have written, then those whose words occur most often.

    Sentences that differ in numbers or a few words are of one kind: the first stands for all, with how many there were.
    """
    by_hand = [line for line in text.splitlines() if _STAMP.sub("", line, count=1) == line.lstrip()]
    noted = set(split_sentences("\n".join(by_hand)))
    kinds = sorted(group_sentences(split_sentences(text)), key=lambda kind: kind[0] not in noted)
    counts = Counter(word for kind in kinds for sentence in kind for word in set(_words(sentence)))

    def weight(kind: list[str]) -> float:
        words = set(_words(kind[0]))
        return sum(counts[word] for word in words) / (len(words) + 3) + len(kind)

    chosen: list[list[str]] = []
    subjects = Counter[str]()
    for kind in sorted(kinds, key=lambda kind: (kind[0] not in noted, -weight(kind), kind[0])):
        subject = " ".join(kind[0].split()[:2])
        if len(chosen) < most and subjects[subject] < MOST_OF_ONE:
            subjects[subject] += 1
            chosen.append(kind)
    return [_one_for_all(kind) for kind in kinds if kind in chosen]


def _one_for_all(kind: Sequence[str]) -> str:
    """The first sentence of a kind, with how many others there were and what they are about."""
    first, *others = kind
    if not others:
        return first
    known = {word.lower() for word in _WORD.findall(first)}
    plain = [_WORD.findall(_ASIDE.sub("", each)) for each in others]
    about = [" ".join(word for word in words if word.lower() not in known) for words in plain]
    named = list(dict.fromkeys(each for each in about if each))
    lead_in = ":" if len(named) == len(others) else ", among them"
    told = f"{lead_in} {', '.join(named)}" if 0 < len(named) <= MOST_NAMED else ""
    return f"{first.rstrip('.!?')} (and {len(others)} more like it{told})."


def group_sentences(sentences: Sequence[str]) -> list[list[str]]:
    """Sentences in groups of those that are nearly the same, in the order of the first of each group."""
    groups: list[tuple[set[str], list[str]]] = []
    for sentence in sentences:
        words = set(re.findall(r"[^\W\d_]+", _ASIDE.sub("", sentence).lower())) or {sentence}
        for known, group in groups:
            if len(words & known) >= ALIKE * len(words | known):
                group.append(sentence)
                break
        else:
            groups.append((words, [sentence]))
    return [group for _, group in groups]


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, without time stamps and levels at the beginning of lines."""
    found = []
    for line in _STAMP.sub("", text).splitlines():
        found += [part.strip() for part in re.split(r"(?<=[.!?])\s+", line) if part.strip()]
    return [sentence if sentence.rstrip("\"'”’")[-1:] in (".", "!", "?") else f"{sentence}." for sentence in found]


def _words(sentence: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(_ASIDE.sub("", sentence)) if word.lower() not in _COMMON]
