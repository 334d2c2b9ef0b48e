"""A pipeline: notes become titles, and all titles of a month become an index. Only what is out of date is made.

python examples/pipeline.py                   everything in this process, then the end
tidemill pipeline run examples/pipeline.py    # the same, kept up to date until it is stopped
"""

import asyncio
import tempfile
from pathlib import Path

from tidemill.pipelines import Pipeline, plan_pipeline, update_pipeline

root = Path(tempfile.mkdtemp())
site = Pipeline("site", root=root)


@site.stage(input="notes/{day:date}.txt", output="titles/{day}.txt")
def title(entity, text):
    print(f"reads {entity.day}")
    return text.splitlines()[0].title()


@site.stage(input="titles/{day:date}.txt", output="index/{day.month}.md", collect="day")
def index(entity, files):
    return "\n".join(f"{file.name[:10]}: {file.text()}" for file in files)


async def main() -> None:
    (root / "notes").mkdir()
    for day, text in {"2026-01-15": "spring tide", "2026-01-16": "neap tide"}.items():
        (root / f"notes/{day}.txt").write_text(text)
    await update_pipeline(site)
    print((root / "index/2026-01.md").read_text())

    print("nothing has changed, and then a note has, but not its title:")
    await update_pipeline(site)
    (root / "notes/2026-01-16.txt").write_text("neap tide\nwith a remark")
    await update_pipeline(site)

    (root / "titles/2026-01-15.txt").unlink()
    for step in (await plan_pipeline(site)).steps:
        print(f"{step.stage.name} {step.entity}: {step.reason}")


if __name__ == "__main__":
    asyncio.run(main())
