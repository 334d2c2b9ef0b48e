"""The same blog from a workflow file: `tidemill up apps.autoblog.from_file`."""

from __future__ import annotations

from pathlib import Path

from apps.autoblog.reading import decode_text, read_log
from apps.autoblog.writing import compose, describe_writer, summarise
from tidemill import App
from tidemill.pipelines import load_workflow, transform


@transform("claude_summarize")
async def summarise_day(entity, files):
    return await summarise(
        entity.date, [read_log(file.name, decode_text(file.read())) for file in files], describe_writer()
    )


@transform("claude_blog")
async def write_post(entity, text):
    return await compose(entity.date, text, describe_writer())


app = App("autoblog-from-file")
for pipeline in load_workflow(Path(__file__).with_name("auto-blog.json")).pipelines:
    app.pipeline(pipeline)
