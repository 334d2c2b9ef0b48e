"""Daily logs: generated ones (the same seed gives the same logs), or the history of a git repository.

python -m apps.autoblog.logs output --days 30
python -m apps.autoblog.logs output --git ../project --days 90
"""

from __future__ import annotations

import argparse
import random
import subprocess
from datetime import date, timedelta
from pathlib import Path

PARTS = ("the importer", "the search index", "the tide gauge", "the billing report", "the mail gateway", "the archive")
DEEDS = (
    "was restarted after its memory had grown to {n} MB",
    "took {n} seconds longer than last week",
    "was moved to the new host without a pause",
    "lost its connection {n} times and recovered by itself",
    "finished all {n} records without a complaint",
    "was changed to keep only {n} days of history",
)
PEOPLE = ("Ada", "Grace", "Edsger", "Barbara", "Leslie")
NOTES = (
    "{who} wants to look at {part} again tomorrow.",
    "{who} asked whether {part} is still needed.",
    "Nothing is left to do for {part}, says {who}.",
)


def write_day(root: Path, day: date, *, seed: int = 1, files: int = 3) -> list[Path]:
    """Write the logs of one day; returns their folder."""
    chance = random.Random(f"{seed}/{day}")
    folder = root / "daily" / day.isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for at in range(files):
        lines, minute = [], 8 * 60 + chance.randrange(60)
        for _ in range(chance.randrange(6, 14)):
            minute += chance.randrange(1, 40)
            part = chance.choice(PARTS)
            if chance.random() < 0.25:
                text = chance.choice(NOTES).format(who=chance.choice(PEOPLE), part=part)
            else:
                text = f"{part.capitalize()} {chance.choice(DEEDS).format(n=chance.randrange(2, 900))}."
            lines.append(f"{minute // 60 % 24:02}:{minute % 60:02} INFO {text}")
        path = folder / f"host-{at + 1}.txt"
        path.write_text("\n".join(lines) + "\n")
        written.append(path)
    return written


def write_history(root: Path, repository: Path, since: date) -> int:
    """Write the commits of a git repository, without merges, as logs of their days; returns how many days there are."""
    command = ["git", "-C", str(repository), "log", "--reverse", "--date-order", "--no-merges"]
    form = [f"--since={since}T00:00:00", "--format=%ad\t%an\t%s", "--date=format:%Y-%m-%d %H:%M"]
    said = subprocess.run([*command, *form], capture_output=True, text=True, check=True).stdout
    commits = [line.split("\t", 2) for line in said.splitlines()]
    is_alone = len({who for _, who, _ in commits}) == 1  # Then the author need not be named.
    days: dict[str, list[str]] = {}
    for moment, who, subject in commits:
        day, _, clock = moment.partition(" ")
        days.setdefault(day, []).append(f"{clock} INFO {subject.rstrip('.')}{'' if is_alone else f' ({who})'}.")
    for day, lines in days.items():
        folder = root / "daily" / day
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{repository.resolve().name}.txt").write_text("\n".join(lines) + "\n")
    return len(days)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write daily logs for the auto-blog.")
    parser.add_argument("root", nargs="?", default="output", help="the folder that the pipelines' root is")
    parser.add_argument("--days", type=int, default=7, help="how many days, up to today")
    parser.add_argument("--until", type=date.fromisoformat, default=date.today(), help="the last day")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--git", type=Path, help="take the history of this repository instead")
    arguments = parser.parse_args()
    if arguments.git is not None:
        found = write_history(Path(arguments.root), arguments.git, arguments.until - timedelta(days=arguments.days))
        print(f"{found} days of {arguments.git} in {arguments.root}/daily")
        return
    for back in range(arguments.days):
        write_day(Path(arguments.root), arguments.until - timedelta(days=back), seed=arguments.seed)
    print(f"{arguments.days} days of logs in {arguments.root}/daily")


if __name__ == "__main__":
    main()
