"""A pipeline for the console's screen of states: a ship's log, tidied, set as pages, and listed in an index."""

import asyncio
from pathlib import Path

from tidemill import App
from tidemill.pipelines import Pipeline

app = App("logbook")
Path("book/watch").mkdir(parents=True, exist_ok=True)
book = Pipeline("logbook", root="book", backoff=["1h"], approve_above=5, on_orphan="archive")


@book.stage(input="watch/{day}.txt", output="clean/{day}.txt", in_process=True)
def tidy(entity, text: str) -> str:
    entity.note(f"{len(text)} characters")
    if "illegible" in text:
        raise ValueError(f"the entry of {entity.day} cannot be read")
    return text.strip().capitalize()


@book.stage(input="clean/{day}.txt", output="page/{day}.html", max_concurrency=2)
async def page(entity, text: str) -> str:
    while Path("fog").exists():  # nothing moves in the fog
        await asyncio.sleep(0.02)
    return f"<h1>{entity.day}</h1><script>document.title = 'stolen'</script><p>{text}</p>"


@book.stage(input="page/{day}.html", output="index.txt", collect="day", in_process=True)
def index(entity, files: list) -> str:
    return "\n".join(file.name for file in files)


app.pipeline(book)
