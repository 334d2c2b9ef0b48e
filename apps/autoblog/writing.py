"""Writes texts: with a language model if one is configured, otherwise by picking the most typical sentences.

The offline writer invents nothing: every sentence of its output is in its input. Of sentences that are nearly the same
it takes one, and says how many there were, and of what. Notes of people come first and stay whole paragraphs; of what
programs wrote, it takes the most typical lines, errors and warnings before others.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

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
MOST_NOTES = 20  # sentences of people, beside which at least so many lines of programs are picked:
LEAST_LINES = 3
LONGEST_TITLE = 90  # characters
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
#: How a line begins that a program wrote, as `read_log` writes it; with what is to do, and the headings of them.
_PROGRAM = re.compile(r"(INFO|WARN|ERROR) ")
_MARK = re.compile(r"^(INFO|WARN|ERROR|TODO) ", re.MULTILINE)
_MARKED = {"WARN": "What went wrong", "ERROR": "What went wrong", "TODO": "What is open"}
_OPENING = re.compile(r"^\d{4}-\d{2}-\d{2}, from (?:(\d+ lines?) of )?\d+ logs?\.\s*")
_ASIDE = re.compile(r"\([^)]*\)")  # such as the author of a commit: it says nothing about what was done
_MORE = re.compile(r"\s*\(and \d+ more like it[^)]*\)")
_COMMON = frozenset(
    {"the", "and", "for", "that", "with", "this", "was", "were", "are", "has", "have", "had", "not", "but", "from"}
)


def describe_writer() -> str:
    """The name of the writer. It counts as code, so that texts are written again when it changes."""
    return "language model" if is_configured() else OFFLINE


async def summarise(date: str, logs: Sequence[str], writer: str, pictures: Sequence[str] = ()) -> str:
    """One paragraph about a day, and a line in Markdown for each picture."""
    text = "\n".join(logs)
    shown = "".join(f"\n![{_caption(name)}](../site/images/{date}/{quote(name)})" for name in pictures)
    if writer != OFFLINE:
        return await asyncio.to_thread(ask, SUMMARY_PROMPT.format(date=date, text=text)) + shown
    count = len(text.splitlines())
    read = f"{count} {'line' if count == 1 else 'lines'} of {len(logs)} {'log' if len(logs) == 1 else 'logs'}"
    return "\n".join([f"{date}, from {read}.", *pick_sentences(text, SENTENCES), shown])


def _caption(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.rpartition(".")[0]).strip()


async def compose(date: str, summary: str, writer: str) -> str:
    """A post about a day, with its pictures."""
    pictures = "".join(f"\n\n{line}" for line in _PICTURES.findall(summary))
    summary = _PICTURES.sub("", summary).rstrip()
    if writer != OFFLINE:
        post = read_post(date, await asyncio.to_thread(ask, POST_PROMPT.format(date=date, text=summary)))
        return write_front_matter(date, post.title, post.summary, post.body + pictures)
    opening = _OPENING.match(summary)
    lines = summary[opening.end() if opening else 0 :].splitlines()
    sentences = split_sentences(_MARK.sub("", "\n".join(lines)))
    title = _title_of(sentences[0]) if sentences else "A quiet day"
    lead = sentences[1:3] or sentences
    # What the title and the lead say is not said again, unless that leaves too little.
    said = [f"{title}.", *lead] if len(sentences) >= LONG else []
    prose: list[str] = []
    parts: dict[str, list[str]] = {heading: [] for heading, _ in _HEADINGS}
    for line in lines:
        held = split_sentences(_MARK.sub("", line))
        if len(held) > 1:
            prose.append(escape_markdown(" ".join(held)))
        elif held and _MORE.sub("", held[0]) not in (_MORE.sub("", each) for each in said):
            parts[_heading_of(line)].append(f"- {escape_markdown(held[0])}")
    points = [f"## {heading}\n\n" + "\n".join(each) for heading, each in parts.items() if each]
    teaser = _MORE.sub("", " ".join(lead))  # In a list of posts, how many others there were says nothing.
    source = f", from {opening[1]}" if opening and opening[1] else ""
    body = "\n\n".join([*prose, *points]) + pictures
    return write_front_matter(date, title, teaser, f"{body}\n\n*Put together {writer}{source}.*")


def _title_of(sentence: str) -> str:
    """A sentence as a title: of a long one the first part."""
    whole = _MORE.sub("", sentence).rstrip(".")
    if len(whole) <= LONGEST_TITLE:
        return whole
    start = whole[:LONGEST_TITLE]
    end = max(start.rfind(each) for each in ("; ", ": ", ", ", " — ", " – "))
    return start[:end] if end > LONGEST_TITLE / 3 else f"{start.rpartition(' ')[0]} …"


def _heading_of(line: str) -> str:
    """The heading that a line belongs under: by what it is, otherwise by its words."""
    mark = _MARK.match(line)
    if mark is not None and mark[1] in _MARKED:
        return _MARKED[mark[1]]
    words = set(_words(line.replace("no longer", "")))
    return next(heading for heading, typical in _HEADINGS if words & typical or not typical)


async def speak(date: str, post: str, writer: str) -> str:
    """The text of a post as a speaker reads it aloud."""
    if writer != OFFLINE:
        return await asyncio.to_thread(ask, SPEECH_PROMPT.format(text=post))
    read = read_post(date, post)
    plain = plain_text(_PICTURES.sub("", read.body))
    lines = [line if line[-1] in ".!?" else f"{line}." for line in plain.splitlines() if line.strip()]
    told = [f"{read.title}.", *([] if read.summary in plain else [read.summary]), *lines]
    return f"Welcome to the digest of {read.spoken_date}.\n\n" + "\n\n".join(told) + "\n"


def pick_sentences(text: str, most: int) -> list[str]:
    """The lines of a summary: notes, then lines of programs, one of each kind, chosen by how often their words occur.

    Sentences that differ in numbers or a few words are of one kind: the first stands for all, with how many there were.
    """
    lines = text.splitlines()
    notes = [line for line in lines if not _PROGRAM.match(line)]
    kinds = group_sentences(split_sentences("\n".join(notes)))[:MOST_NOTES]
    kept = {kind[0]: _one_for_all(kind) for kind in kinds}
    told = [" ".join(kept.pop(each) for each in split_sentences(line) if each in kept) for line in notes]
    marked = group_sentences(split_sentences("\n".join(line for line in lines if _PROGRAM.match(line))))
    picked = _pick_kinds(marked, max(most - len(kinds), LEAST_LINES))
    return [line.removeprefix("INFO ") for line in [*filter(None, told), *map(_one_for_all, picked)]]


def _pick_kinds(kinds: list[list[str]], most: int) -> list[list[str]]:
    """The kinds of lines that say most: errors, then warnings, then those whose words occur most often."""
    counts = Counter(word for kind in kinds for sentence in kind for word in set(_words(_MARK.sub("", sentence))))

    def weight(kind: list[str]) -> float:
        words = set(_words(_MARK.sub("", kind[0])))
        return sum(counts[word] for word in words) / (len(words) + 3) + len(kind)

    chosen: list[list[str]] = []
    subjects = Counter[str]()
    ranks = {"ERROR": 0, "WARN": 1}
    for kind in sorted(kinds, key=lambda kind: (ranks.get(kind[0].split()[0], 2), -weight(kind), kind[0])):
        subject = " ".join(kind[0].split()[:3])
        if len(chosen) < most and subjects[subject] < MOST_OF_ONE:
            subjects[subject] += 1
            chosen.append(kind)
    return [kind for kind in kinds if kind in chosen]


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
        words = set(re.findall(r"[^\W\d_]+", _ASIDE.sub("", _MARK.sub("", sentence)).lower())) or {sentence}
        for known, group in groups:
            if len(words & known) >= ALIKE * len(words | known):
                group.append(sentence)
                break
        else:
            groups.append((words, [sentence]))
    return [group for _, group in groups]


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, line by line; each ends with a mark. What a program wrote is not split."""
    found = []
    for line in text.splitlines():
        parts = [line] if _MARK.match(line) else re.split(r"(?<=[.!?])\s+", line)
        found += [part.strip() for part in parts if part.strip()]
    return [sentence if sentence.rstrip("\"'”’")[-1:] in (".", "!", "?") else f"{sentence}." for sentence in found]


def _words(sentence: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(_ASIDE.sub("", sentence)) if word.lower() not in _COMMON]
