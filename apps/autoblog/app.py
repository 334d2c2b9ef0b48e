"""The auto-blog: daily logs → a summary of each day → a post → a site; and from the post, a podcast.

    python -m apps.autoblog.logs output --days 30      write a month of daily logs
    python -m apps.autoblog.logs output --git .        or take them from the history of a git repository
    tidemill up apps.autoblog.app                   keep everything that follows from them up to date
    tidemill pipeline status apps.autoblog.app

Two pipelines that know nothing of each other: `auto-blog` writes `blog/{date}.md`, and `daily-podcast` takes it. With
ANTHROPIC_API_KEY or OPENAI_API_KEY set, a language model writes; otherwise an extractive summariser groups what is
nearly the same and picks the most typical sentences, and its texts say so. The site is `site/index.html`, and the page
at /pages/blog/ of the server shows it beside its states. The program
`espeak-ng`, or another voice (AUTOBLOG_VOICE), reads the posts aloud.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from apps.autoblog.page import blog_page
from apps.autoblog.reading import PICTURE, decode_text, is_log, is_picture, read_log
from apps.autoblog.site import escape_markdown, read_post, write_feed, write_index, write_page
from apps.autoblog.voice import find_voice, read_aloud
from apps.autoblog.writing import compose, describe_writer, speak, summarise
from tidemill import App
from tidemill.pipelines import SKIP, File, Pipeline

ROOT = Path(os.environ.get("AUTOBLOG_ROOT", "output"))
ADDRESS = os.environ.get("AUTOBLOG_URL", "https://blog.example/")
WRITER = describe_writer()
VOICE = find_voice()

app = App("autoblog")
blog = Pipeline("auto-blog", root=ROOT)
podcast = Pipeline("daily-podcast", root=ROOT)


@blog.stage(
    input="daily/{date:date}/*",
    output="summary/{date}.txt",
    min_size=20,
    max_concurrency=8,
    params={"writer": WRITER},
)
async def summary(entity, files, writer):
    """What happened on a day, in a few sentences; the pictures of the day follow."""
    pictures = [file.name for file in files if is_picture(file.name)]
    logs = [read_log(file.name, decode_text(file.read())) for file in files if is_log(file.name)]
    if not any(logs) and not pictures:
        return SKIP  # Nothing of this day can be shown: the other days still have a site.
    entity.note(f"{len(logs)} logs, written by {writer}")
    return await summarise(entity.date, logs, writer, pictures)


@blog.stage(
    input="summary/{date:date}.txt", output="blog/{date}.md", min_size=60, max_concurrency=8, params={"writer": WRITER}
)
async def post(entity, text, writer):
    """The day's post."""
    return await compose(entity.date, text, writer)


@blog.stage(input="blog/{date:date}.md", output="month/{date.month}.md", collect="date")
def digest(entity, files):
    """All posts of a month, the newest first."""
    month = entity["date.month"]
    posts = [read_post(file.name.removesuffix(".md"), file.text()) for file in reversed(files)]
    parts = [f"## {post.date}: {escape_markdown(post.title)}\n\n{post.body}" for post in posts]
    return f"# {month}: {len(posts)} posts\n\n" + "\n\n".join(parts) + "\n"


@blog.stage(
    input="daily/{date:date}/{file}",
    output="site/images/{date}/{file}",
    filter=f"file.matches('(?i){PICTURE}')",
    in_process=True,
)
def picture(entity, file: File):
    """A picture of the day."""
    return file.pieces()


@blog.stage(input="blog/{date:date}.md", output="blog/days.json", collect="date")
def days(entity, files):
    """The days that have a post, in order: each page links to those before and after it."""
    return sorted(file.name.removesuffix(".md") for file in files)


@blog.stage(
    input={"text": "blog/{date:date}.md", "order": "blog/days.json"},
    output="site/posts/{date}.html",
    params={"audio": VOICE is not None},
)
def page(entity, text, order, audio):
    """The day's page of the site."""
    return write_page(read_post(entity.date, text), json.loads(order), audio=audio)


@blog.stage(input="blog/{date:date}.md", output="site/index.html", collect="date")
def index(entity, files):
    """The list of all posts."""
    return write_index([read_post(file.name.removesuffix(".md"), file.text()) for file in files])


@blog.stage(
    input="blog/{date:date}.md",
    output="site/feed.xml",
    collect="date",
    params={"address": ADDRESS, "audio": VOICE is not None},
)
def feed(entity, files, address, audio):
    """The feed of the newest posts, with their sound."""
    posts = [read_post(file.name.removesuffix(".md"), file.text()) for file in files]
    return write_feed(posts, address, audio=audio)


@podcast.stage(input="blog/{date:date}.md", output="podcast/{date}.txt", min_size=40, params={"writer": WRITER})
async def script(entity, text, writer):
    """What a speaker reads aloud."""
    return await speak(entity.date, text, writer)


@podcast.stage(input="podcast/{date:date}.txt", output="audio/{date}.json")
def audio(entity, text):
    """What a voice needs: paragraphs with the seconds that they take to read at 150 words a minute."""
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    return [{"text": part, "seconds": round(len(part.split()) * 60 / 150, 1)} for part in paragraphs]


if VOICE is not None:

    @podcast.stage(
        input="podcast/{date:date}.txt", output="site/audio/{date}.wav", min_size=1000, params={"voice": VOICE}
    )
    def recording(entity, text, voice):
        """The post, read aloud."""
        return read_aloud(text, voice)


app.pipeline(blog)
app.pipeline(podcast)
app.add_page(blog_page(ROOT))
