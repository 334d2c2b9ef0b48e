"""The site: each post as HTML, an index, and an Atom feed, from Markdown with front matter."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date
from html import escape

import msgspec
from markdown_it import MarkdownIt

NAME = "Daily digest"
_WORDS = ("true", "false", "null", "yes", "no", "on", "off")  # that are no texts in YAML
ABOUT = "What happened, day by day, from the logs of that day."

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='16' height='16' rx='3' fill='%230b6e8a'/%3E"
    "%3Cpath d='M4 5h8M4 8h8M4 11h5' stroke='white'/%3E%3C/svg%3E"
)

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #5b6477; --line: #dfe3ea; --paper: #fdfcf9;
  --accent: #0b6e8a }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ee; --soft: #a3acbf; --line: #333a49; --paper: #14171f; --accent: #6cc5de }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 42rem; padding: 2.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.65 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, serif; overflow-wrap: break-word }
header, footer, time, nav, .about { font-family: system-ui, sans-serif; color: var(--soft); font-size: .875rem }
header { display: flex; justify-content: space-between; border-bottom: 1px solid var(--line); padding-bottom: .75rem }
header a { color: inherit; text-decoration: none; font-weight: 600 }
a { color: var(--accent) }
h1 { font-size: 2rem; line-height: 1.2; margin: 2rem 0 .25rem; text-wrap: balance }
h2 { font-size: 1.25rem; margin: 2rem 0 .5rem }
h1 + time { display: block; margin-bottom: 1.5rem }
ul { padding-left: 1.2rem } li { margin: .35rem 0 }
.lead { font-size: 1.15rem; color: var(--soft) }
article > p:last-child > em:only-child { color: var(--soft); font-size: .875rem }
.posts { list-style: none; padding: 0 } .posts li { border-bottom: 1px solid var(--line); padding: 1.1rem 0; margin: 0 }
.posts a { font-size: 1.2rem; font-weight: 600; text-decoration: none }
.posts p { margin: .25rem 0 0; color: var(--soft) }
audio { width: 100%; margin: 1rem 0 } img { max-width: 100%; height: auto; border-radius: .25rem }
nav { display: flex; justify-content: space-between; gap: 1rem; margin-top: 3rem; border-top: 1px solid var(--line);
  padding-top: 1rem } footer { margin-top: 3rem }
"""


class Post(msgspec.Struct, frozen=True):
    """A post: its front matter, and its text in Markdown."""

    date: str
    title: str
    summary: str
    body: str

    @property
    def spoken_date(self) -> str:
        return f"{date.fromisoformat(self.date):%A, %-d %B %Y}"


def escape_markdown(text: str) -> str:
    """A line of plain text as Markdown that shows it as it is: `__init__` stays `__init__`."""
    return re.sub(r"^(\d*)([-+=#.)])", r"\1\\\2", re.sub(r"[\\`*_\[\]<>&~|]", r"\\\g<0>", text))


def plain_text(markdown: str) -> str:
    """Markdown without its marks, line by line."""
    marks = r"\\([!-/:-@\[-`{-~])|^[#*-]+\s*|\*"
    return re.sub(marks, lambda found: found[1] or "", markdown, flags=re.MULTILINE)


def write_front_matter(date: str, title: str, summary: str, body: str) -> str:
    """A post as Markdown with front matter."""
    head = "".join(
        f"{name}: {_as_yaml(' '.join(text.split()))}\n" for name, text in (("title", title), ("summary", summary))
    )
    return f"---\n{head}date: {date}\n---\n\n{body.strip()}\n"


def _as_yaml(text: str) -> str:
    """A line of text as YAML: in quotes where other programs would read something else."""
    is_plain = re.fullmatch(r"\w.*", text) is not None and text[-1] != ":" and ": " not in text and " #" not in text
    return text if is_plain and text.lower() not in _WORDS else json.dumps(text, ensure_ascii=False)


def _from_yaml(text: str) -> str:
    """The text of a line in YAML, which a person or a language model may have written in quotes."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        return text


def read_post(date: str, text: str) -> Post:
    """A post from its Markdown; without front matter, its first heading is its title."""
    fields: dict[str, str] = {}
    body = text
    if text.startswith("---\n") and "\n---\n" in text[4:]:
        head, _, body = text[4:].partition("\n---\n")
        fields = {
            name.strip(): _from_yaml(value.strip())
            for name, _, value in (line.partition(":") for line in head.splitlines())
        }
    lines = body.strip().splitlines()
    if not fields.get("title") and lines and lines[0].startswith("#"):
        fields["title"] = lines.pop(0).lstrip("# ")
    plain = next((line for line in lines if line.strip() and not line.startswith(("#", "-", "*", "!["))), "")
    return Post(date, fields.get("title") or date, fields.get("summary") or plain, "\n".join(lines).strip())


def write_page(post: Post, days: Sequence[str], *, audio: bool) -> str:
    """The page of a post; `days` are those of all posts, in order."""
    source = f"../audio/{post.date}.wav"
    listen = f'<audio controls preload="none" src="{source}">The post, read aloud</audio>' if audio else ""
    said = plain_text(post.body)
    is_said = all(part in said for part in post.summary.split(". "))
    lead = "" if is_said else f'<p class="lead">{escape(post.summary)}</p>'
    title = f'<h1>{escape(post.title)}</h1><time datetime="{post.date}">{post.spoken_date}</time>'
    article = f"<article>{title}{lead}{listen}{_html(post, '../')}</article>"
    return _document(post.title, post.summary, article + _neighbours(post.date, days), up="../")


def _html(post: Post, up: str) -> str:
    """The text of a post; `up` is the way to the site, which its pictures are in."""
    return MarkdownIt("commonmark", {"html": False}).render(post.body).replace('src="../site/', f'src="{up}')


def _neighbours(day: str, days: Sequence[str]) -> str:
    earlier = [each for each in days if each < day][-1:]
    later = [each for each in days if each > day][:1]
    links = [f'<a rel="prev" href="{each}.html">← {_spoken(each)}</a>' for each in earlier] or ["<span></span>"]
    links += [f'<a rel="next" href="{each}.html">{_spoken(each)} →</a>' for each in later]
    return f'<nav aria-label="Posts">{"".join(links)}</nav>'


def _spoken(day: str) -> str:
    return f"{date.fromisoformat(day):%-d %B %Y}"


def write_index(posts: Sequence[Post]) -> str:
    """The list of all posts, the newest first."""
    items = "".join(
        f'<li><time datetime="{post.date}">{post.spoken_date}</time><br>'
        f'<a href="posts/{post.date}.html">{escape(post.title)}</a>{_teaser(post)}</li>'
        for post in sorted(posts, key=lambda post: post.date, reverse=True)
    )
    return _document(NAME, ABOUT, f'<h1>{NAME}</h1><p class="lead">{ABOUT}</p><ul class="posts">{items}</ul>')


def _teaser(post: Post) -> str:
    """What a post is about, unless its title says it all."""
    return "" if post.summary.rstrip(".") in ("", post.title) else f"<p>{escape(post.summary)}</p>"


def write_feed(posts: Sequence[Post], address: str, *, audio: bool) -> str:
    """An Atom feed of the newest posts, whole, each with its sound."""

    def sound(post: Post) -> str:
        return (
            f'<link rel="enclosure" type="audio/wav" href="{escape(address)}audio/{post.date}.wav"/>' if audio else ""
        )

    newest = sorted(posts, key=lambda post: post.date, reverse=True)[:30]
    entries = "".join(
        f"<entry><title>{escape(post.title)}</title><id>{escape(address)}posts/{post.date}.html</id>"
        f'<link href="{escape(address)}posts/{post.date}.html"/><updated>{post.date}T00:00:00Z</updated>'
        f"{sound(post)}<summary>{escape(post.summary)}</summary>"
        f'<content type="html">{escape(_html(post, address))}</content></entry>'
        for post in newest
    )
    updated = newest[0].date if newest else "1970-01-01"
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom">'
        f"<title>{NAME}</title><subtitle>{ABOUT}</subtitle><id>{escape(address)}</id>"
        f'<link href="{escape(address)}"/><link rel="self" href="{escape(address)}feed.xml"/>'
        f"<author><name>{NAME}</name></author><updated>{updated}T00:00:00Z</updated>{entries}</feed>\n"
    )


def _document(title: str, about: str, content: str, *, up: str = "") -> str:
    full = title if title == NAME else f"{title} · {NAME}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(full)}</title><meta name="description" content="{escape(about)}">'
        f'<link rel="alternate" type="application/atom+xml" title="{NAME}" href="{up}feed.xml">'
        f'<link rel="icon" href="{ICON}"><style>{STYLE}</style></head><body>'
        f'<header><a href="{up}index.html">{NAME}</a><a href="{up}feed.xml">Feed</a></header><main>{content}</main>'
        "<footer>Built from daily logs.</footer></body></html>\n"
    )
