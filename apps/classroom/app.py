"""The application: `tidemill up apps/classroom/app.py`.

CLASSROOM_URL        the API of the production log; the simulator's, if not given
CLASSROOM_USER, CLASSROOM_PASSWORD
CLASSROOM_PROFILE    document (the original's figures) or corrected
CLASSROOM_ROSTER     listed (only those who were added) or open
CLASSROOM_HOURS      when there are lessons, as in "Mon-Fri 08:00-15:30": only then can a student be inactive
CLASSROOM_TIMEZONE   of these hours, as in Europe/Paris; UTC, if not given
CLASSROOM_GLASS      1 runs the glass box for all students as well, as a second monitor
CLASSROOM_KEY        the key of pseudonyms; without it they change at each start
CLASSROOM_STREAMS    how many pages may be open on one server; 500, if not given
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from apps.classroom.blocks import Profile
from apps.classroom.monitor import classroom, glass_box, production, triggers
from apps.classroom.routes import classroom_page
from tidemill import App
from tidemill.monitors import Hours
from tidemill.sources import HttpSource

PROFILE: Profile = "corrected" if os.environ.get("CLASSROOM_PROFILE") == "corrected" else "document"
ROSTER: Literal["open", "listed"] = "open" if os.environ.get("CLASSROOM_ROSTER") == "open" else "listed"


def from_environment() -> HttpSource:
    """The production system that the environment sets."""
    return production(
        os.environ.get("CLASSROOM_URL", "http://127.0.0.1:8899"),
        os.environ.get("CLASSROOM_USER", "daemon"),
        os.environ.get("CLASSROOM_PASSWORD", "simulated"),
    )


def lesson_hours() -> Hours | None:
    """The hours of lessons that the environment sets."""
    text = os.environ.get("CLASSROOM_HOURS")
    return Hours(text, timezone=os.environ.get("CLASSROOM_TIMEZONE", "UTC")) if text else None


app = App("classroom", directory=str(Path(os.environ.get("CLASSROOM_DIRECTORY", ".tidemill"))))
rules = triggers(hours=lesson_hours())
watch = app.monitor(classroom(from_environment(), profile=PROFILE, roster=ROSTER, triggers=rules))
if os.environ.get("CLASSROOM_GLASS") == "1":
    app.monitor(glass_box(from_environment(), roster=ROSTER, triggers=rules))
app.add_page(classroom_page(watch, PROFILE))
