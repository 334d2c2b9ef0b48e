"""The pipeline that two builders share: N log files, three stages of everyday Python on each.

The first parses a log, the second counts what is in it, the third makes a page of that. All of them hold the
interpreter: functions that release it fill all cores with one builder, which has a thread for each stage.
PIPELINE_ROOT says where its files are.
"""

import html
import json
import os
import re
from collections import Counter, defaultdict
from datetime import datetime

from tidemill.pipelines import Pipeline

LINES = 600  # of each log: about 45 kB
LINE = re.compile(
    r"(?P<at>\S+ \S+) (?P<level>[A-Z]+) (?P<service>[a-z]+)\[\d+\]: request (?P<path>\S+) took (?P<ms>\d+) ms"
)
LEVELS = ("INFO", "INFO", "INFO", "WARNING", "ERROR")
SERVICES = ("orders", "mail", "search", "billing")

shared = Pipeline("shared", root=os.environ.get("PIPELINE_ROOT", "."), approve_above=None)


def write_log(number: int) -> str:
    """The text of an input."""
    return "".join(
        f"2026-03-{number % 28 + 1:02} {at // 25:02}:{at % 60:02}:{at % 59:02} {LEVELS[at * 7 % 5]} "
        f"{SERVICES[at * 3 % 4]}[{number}]: request /{SERVICES[at % 4]}/{at * number % 97} took {at * 13 % 900} ms\n"
        for at in range(LINES)
    )


@shared.stage(input="in/{id}.txt", output="mid/{id}.json")
def parse(entity, text):
    rows = []
    for line in text.splitlines():
        found = LINE.fullmatch(line)
        if found is not None:
            hour = datetime.strptime(found["at"], "%Y-%m-%d %H:%M:%S").hour
            rows.append([hour, found["service"], found["level"], found["path"], int(found["ms"])])
    return json.dumps(rows)


@shared.stage(input="mid/{id}.json", output="out/{id}.json")
def count(entity, text):
    levels, paths, times = Counter(), Counter(), defaultdict(list)
    for hour, service, level, path, milliseconds in json.loads(text):
        levels[f"{service} {level}"] += 1
        paths[path] += 1
        times[f"{service} {hour:02}:00"].append(milliseconds)
    hours = {name: [len(taken), sorted(taken)[len(taken) // 2], max(taken)] for name, taken in times.items()}
    return json.dumps({"hours": hours, "levels": levels, "paths": paths.most_common(100)})


@shared.stage(input="out/{id}.json", output="end/{id}.html")
def render(entity, text):
    data = json.loads(text)
    tables = [[(name, *row) for name, row in data["hours"].items()], data["levels"].items(), data["paths"]]
    page = f"<h1>{html.escape(entity.id)}</h1>"
    for table in tables:
        rows = ("".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in table)
        page += f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
    return page
