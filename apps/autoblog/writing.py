"""Writes texts: with a language model if one is configured, otherwise by picking the most typical sentences.

The offline writer invents nothing: every sentence of its output is in its input.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence

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
SENTENCES = 5
_WORD = re.compile(r"[^\W\d_]{3,}")
_STAMP = re.compile(
    r"^\s*(?:\[?\d{1,2}:\d{2}(?::\d{2})?\]?\s*)?(?:(?:INFO|DEBUG|WARN(?:ING)?|ERROR)\b:?\s*)?", re.MULTILINE
)
_COMMON = frozenset(
    {"the", "and", "for", "that", "with", "this", "was", "were", "are", "has", "have", "had", "not", "but", "from"}
)


def describe_writer() -> str:
    """The name of the writer. It counts as code, so that texts are written again when it changes."""
    return "language model" if is_configured() else OFFLINE


async def summarise(date: str, logs: Sequence[str], writer: str) -> str:
    """One paragraph about a day."""
    text = "\n".join(logs)
    if writer != OFFLINE:
        return await asyncio.to_thread(ask, SUMMARY_PROMPT.format(date=date, text=text))
    picked = pick_sentences(text, SENTENCES)
    return f"{date}, from {len(logs)} logs. " + " ".join(picked) + "\n"


async def compose(date: str, summary: str, writer: str) -> str:
    """A post about a day."""
    if writer != OFFLINE:
        return await asyncio.to_thread(ask, POST_PROMPT.format(date=date, text=summary))
    sentences = split_sentences(summary.partition(". ")[2] or summary)
    title = sentences[0].rstrip(".") if sentences else "A quiet day"
    points = "\n".join(f"- {sentence}" for sentence in sentences)
    return f"# {date}: {title}\n\n{points}\n\n*Put together {writer}.*\n"


async def speak(date: str, post: str, writer: str) -> str:
    """The text of a post as a speaker reads it aloud."""
    if writer != OFFLINE:
        return await asyncio.to_thread(ask, SPEECH_PROMPT.format(text=post))
    plain = re.sub(r"^[#*-]+\s*|\*", "", post, flags=re.MULTILINE)
    return (
        f"Welcome to the digest of {date}.\n\n"
        + "\n\n".join(line for line in plain.splitlines() if line.strip())
        + "\n"
    )


def pick_sentences(text: str, most: int) -> list[str]:
    """The sentences whose words occur most often, in the order of the text, without repeats."""
    sentences = list(dict.fromkeys(split_sentences(text)))
    counts = Counter(word for sentence in sentences for word in set(_words(sentence)))

    def weight(sentence: str) -> float:
        words = set(_words(sentence))
        return sum(counts[word] for word in words) / (len(words) + 3)

    chosen = set(sorted(sentences, key=lambda sentence: (-weight(sentence), sentence))[:most])
    return [sentence for sentence in sentences if sentence in chosen]


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, without time stamps and levels at the beginning of lines."""
    found = []
    for line in _STAMP.sub("", text).splitlines():
        found += [part.strip() for part in re.split(r"(?<=[.!?])\s+", line) if part.strip()]
    return [sentence if sentence[-1] in ".!?" else f"{sentence}." for sentence in found]


def _words(sentence: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(sentence) if word.lower() not in _COMMON]
