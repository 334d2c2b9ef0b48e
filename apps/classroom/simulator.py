"""A simulated production system: a REST log with token auth, filled by students who work and get stuck.

python -m apps.classroom.simulator --students 200 --port 8899 [--past 20m] [--speed 10]

It misbehaves as real ones do: tokens expire, some answers are 500 or slow, some pages repeat events of the page before.
The events of each student follow from a seed, so that a lesson can be repeated.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from apps.classroom.monitor import LOGS, TOKEN
from tidemill.core.duration import parse_duration
from tidemill.sources.base import read_time

MOTIONS = ("drive_for", "turn_for", "set_velocity", "wait", "print", "spin")
NAMESPACE = "https://developers.google.com/blockly/xml"
NUMBER = '<value name="{}"><shadow type="math_number"><field name="NUM">{}</field></shadow></value>'
LOOPS = ("repeat", "forever", "if_then")


class Moods:
    """How often the API misbehaves: shares of all answers, and how long a token is valid."""

    def __init__(
        self, *, errors: float = 0.0, slow: float = 0.0, repeats: float = 0.0, token_uses: int = 0, delay: float = 0.5
    ) -> None:
        self.errors, self.slow, self.repeats, self.token_uses, self.delay = errors, slow, repeats, token_uses, delay


class Block:
    """A block of a simulated program."""

    def __init__(self, type: str, number: int, body: list[Block] | None = None) -> None:
        self.type, self.number, self.body = type, number, body

    def copy(self) -> Block:
        return Block(self.type, self.number, None if self.body is None else [each.copy() for each in self.body])


def to_xml(stack: Sequence[Block]) -> str:
    """A stack under the event that starts it, as Blockly writes it."""
    return f'<xml xmlns="{NAMESPACE}"><block type="vex_when_started">{_next(stack)}</block></xml>'


def _next(stack: Sequence[Block]) -> str:
    opened, closed = [], []
    for block in stack:
        opened.append(f'<next><block type="vex_{escape(block.type)}">')
        if block.body is not None:
            inner = _next(block.body).removeprefix("<next>").removesuffix("</next>")
            opened.append(NUMBER.format("TIMES", block.number))
            opened.append(f'<statement name="DO">{inner}</statement>' if inner else "")
        else:
            opened.append('<field name="UNIT">mm</field>' + NUMBER.format("AMOUNT", block.number))
        closed.append("</block></next>")
    return "".join(opened) + "".join(closed)


class Pupil:
    """A simulated student: a program, a way of working, and a story that follows from the seed."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._draw = random.Random(f"{seed}/{name}")
        self._stack = [self._block() for _ in range(self._draw.randint(4, 12))]
        self._mode = self._draw.choice(["iterate", "iterate", "explore"])
        self.mode_since = 0.0

    @property
    def mode(self) -> str:
        return self._mode

    def story(self, start: float) -> Iterator[tuple[float, str, dict[str, Any]]]:
        """Times, types and messages of this student's events, without end."""
        now = start + self._draw.uniform(0, 30)
        yield now, "loadProject", {}
        while True:
            for _ in range(self._draw.randint(0, 4) if self._mode != "stuck" else self._draw.choice([0, 0, 0, 1])):
                now += self._draw.expovariate(1 / 4)
                block = self._change()
                kind = self._draw.choice(["blockChanged", "blockMoved", "blockCreated", "blockDeleted"])
                yield now, kind, {"blockEventData": json.dumps({"type": f"vex_{block.type}", "id": f"{now:.0f}"})}
            now += self._draw.expovariate(1 / 5)
            project = {"name": f"{self.name}'s project", "workspace": to_xml(self._stack)}
            yield now, "runProject", {"project": json.dumps(project), "programType": "blocks"}
            now += self._draw.uniform(2, 15)
            if self._draw.random() < 0.3:
                yield now - 1, "playgroundData", {"playgroundData": json.dumps({"distance": self._draw.random()})}
            yield now, "projectEnd", {}
            now += self._draw.expovariate(1 / (25 if self._mode == "stuck" else 12))
            if self._draw.random() < 0.01:
                now += self._draw.uniform(300, 900)  # looks out of the window
            self._wander(now)

    def _wander(self, now: float) -> None:
        leave = {"iterate": 0.06, "explore": 0.12, "stuck": 0.1}[self._mode]
        if self._draw.random() < leave:
            others = {"iterate": ["explore", "stuck"], "explore": ["iterate", "stuck"], "stuck": ["iterate", "explore"]}
            self._mode = self._draw.choice(others[self._mode])
            self.mode_since = now

    def _change(self) -> Block:
        draw = self._draw
        if self._mode == "explore" and draw.random() < 0.25:
            self._stack = [self._block() for _ in range(draw.randint(4, 16))]
            return self._stack[0]
        place = draw.randrange(len(self._stack))
        what = draw.random()
        if what < 0.4:
            self._stack[place].number = draw.choice([90, 100, 200, 300, 600])
        elif what < 0.7 or len(self._stack) < 3:
            self._stack.insert(place, self._block())
        elif what < 0.9:
            del self._stack[place]
            place = min(place, len(self._stack) - 1)
        else:
            draw.shuffle(self._stack)
        return self._stack[place]

    def _block(self) -> Block:
        if self._draw.random() < 0.2:
            return Block(self._draw.choice(LOOPS), self._draw.randint(2, 9), [self._plain() for _ in range(2)])
        return self._plain()

    def _plain(self) -> Block:
        return Block(self._draw.choice(MOTIONS), self._draw.choice([90, 100, 200, 300]))


class Lesson:
    """The events of all students in order of time, up to now."""

    def __init__(
        self,
        students: int,
        *,
        start: float,
        seed: int = 1,
        now: Callable[[], float] = time.time,
        code: str = "5B",
        speed: float = 1.0,
    ) -> None:
        self.pupils = [Pupil(f"s{number:03d}", seed) for number in range(1, students + 1)]
        self._now = now
        self._code = code
        self._start, self._speed = start, speed
        self._stories = [(pupil, pupil.story(start)) for pupil in self.pupils]
        self._due: list[tuple[float, int, str, dict[str, Any]]] = []
        for index, (_, story) in enumerate(self._stories):
            heapq.heappush(self._due, (*_first(next(story), index),))
        self.log: list[dict[str, Any]] = []
        self.times: list[float] = []
        self._lock = threading.Lock()

    def upto_now(self) -> list[dict[str, Any]]:
        """The log, with everything that has happened by now; oldest first."""
        with self._lock:
            now = self._start + (self._now() - self._start) * self._speed
            while self._due[0][0] <= now:
                at, index, kind, message = heapq.heappop(self._due)
                pupil, story = self._stories[index]
                # Faster students live through more in the same time; the log keeps to the time of the clock.
                moment = self._start + (at - self._start) / self._speed
                self.log.append(self._entry(pupil, moment, kind, message))
                self.times.append(read_time(self.log[-1]["recieved_at"]))
                heapq.heappush(self._due, (*_first(next(story), index),))
            return self.log

    def _entry(self, pupil: Pupil, at: float, kind: str, message: dict[str, Any]) -> dict[str, Any]:
        raw = {"sessionID": f"session-{pupil.name}", "timestamp": at, "hasOrphans": False, **message}
        return {
            "id": len(self.log) + 1,
            "eventType": kind,
            "classCode": self._code,
            "studentID": pupil.name,
            "project": json.dumps({"name": f"{pupil.name}'s project"}),
            "raw_message": json.dumps(raw),
            "recieved_at": datetime.fromtimestamp(at, UTC).isoformat(),
        }


def _first(event: tuple[float, str, dict[str, Any]], index: int) -> tuple[float, int, str, dict[str, Any]]:
    at, kind, message = event
    return at, index, kind, message


class Production:
    """The API over a lesson."""

    def __init__(self, lesson: Lesson, moods: Moods | None = None, *, seed: int = 1) -> None:
        self.lesson = lesson
        self.moods = moods or Moods()
        self._draw = random.Random(seed)
        self._token, self._uses = "token-1", 0
        self._last: list[dict[str, Any]] = []
        self.answers: dict[int, int] = {}

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Status and body of an answer."""
        status, told = self._answer(method, urlsplit(path), headers, body)
        self.answers[status] = self.answers.get(status, 0) + 1
        return status, json.dumps(told).encode()

    def _answer(self, method: str, parts: Any, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if parts.path == TOKEN and method == "POST":
            self._uses = 0
            self._token = f"token-{self._draw.randrange(10**9)}"
            return 200, {"token": self._token}
        if parts.path != LOGS:
            return 404, {"detail": "not found"}
        self._uses += 1
        expired = self.moods.token_uses and self._uses > self.moods.token_uses
        if headers.get("authorization") != f"Token {self._token}" or expired:
            return 401, {"detail": "invalid token"}
        if self._draw.random() < self.moods.slow:
            time.sleep(self.moods.delay)
        if self._draw.random() < self.moods.errors:
            return 500, {"detail": "out of order"}
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return 200, {"results": self._page(query)}

    def _page(self, query: dict[str, str]) -> list[dict[str, Any]]:
        begin, limit = int(query.get("offset", 0)), min(500, int(query.get("limit", 500)))
        since = read_time(query["dateFrom"]) if "dateFrom" in query else None
        whose = query.get("studentID")
        log = self.lesson.upto_now()
        first, last = 0 if since is None else bisect_left(self.lesson.times, since), len(log)
        if whose is None:
            found = log[max(first, last - begin - limit) : max(first, last - begin)][::-1]
        else:
            theirs = (log[place] for place in range(last - 1, first - 1, -1) if log[place]["studentID"] == whose)
            found = list(islice(theirs, begin, begin + limit))
        if self._last and len(found) < limit and self._draw.random() < self.moods.repeats:
            found = [*found, *self._last[:2]][:limit]
        self._last = found
        return found


def serve(production: Production, port: int = 0) -> ThreadingHTTPServer:
    """The API on a port of this machine; `server.serve_forever()` answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, told = production.answer(self.command, self.path, headers, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        do_GET = do_POST = _take

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description="A production system with simulated students.")
    parser.add_argument("--students", type=int, default=200)
    parser.add_argument("--port", type=int, default=8899)
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster they live than the clock")
    parser.add_argument("--past", default="0", help="how long ago their lesson began, as in 20m")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", action="store_true", help="an API without moods")
    wanted = parser.parse_args()
    start = time.time() - parse_duration(wanted.past, what="--past")
    lesson = Lesson(wanted.students, start=start, seed=wanted.seed, speed=wanted.speed)
    moods = Moods() if wanted.calm else Moods(errors=0.02, slow=0.02, repeats=0.05, token_uses=500)
    server = serve(Production(lesson, moods), wanted.port)
    print(f"{wanted.students} students at http://127.0.0.1:{wanted.port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
