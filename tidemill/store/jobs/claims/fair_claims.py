"""Claims from queues whose jobs have fair keys: a worker divides each claim among the lanes that it knows.

`job_fair` has one range per queue, priority and fair key. A claim reads a few entries of each lane that it visits, and
stops when it has enough. Nothing is written for fairness but the job's own row, and workers share no state: each has
its own ring of lanes. It learns of lanes from wake-ups, and from a scan that jumps from lane to lane, page by page: the
scan finds lanes whose wake-up was missed, and when delayed jobs are due. It takes a small share of the time.

Where lanes are many and short, a claim that its lanes do not fill walks on through the index from where the scan is: it
takes the first jobs of each lane that it passes, mostly all that the lane has, without a search for the lane.

A claim from lanes with rate keys also locks the buckets of these keys: every job that starts fills its bucket by one,
and a bucket drains at the rate of its key. A job may start if its bucket does not overflow, which is at its burst.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from tidemill.core.jobs.fair_lanes import FairLanes, LaneName, Offer
from tidemill.core.jobs.job import LANE_SEPARATOR, ClaimedJob, Finish
from tidemill.store.database import columns
from tidemill.store.jobs.claims.claims import Claims, Turn, claim_statements, claimed_job

PAGE = 500
FIRST_CHARACTER = "\x01"  # PostgreSQL compares keys byte by byte, and has none with a NUL.
LOOK_EVERY = 30.0
FIRST_SHARE, LATER_SHARE, FRONT_SHARE = 0.2, 0.03, 0.1
WALK_SHARE = 0.01  # of the time, if claims walk on: pages are read only if they would pass lanes more quickly than that

_LANE_JOBS = """
    SELECT ctid FROM tidemill.job
    WHERE {lane} AND queue = $1 AND priority = lane.priority AND state = 'ready' AND due_at <= now()
      AND (due_at, id) >= (coalesce(lane.due, '-infinity'), lane.id) AND suspicions = 0 AND task <> ALL ($8::text[])
    ORDER BY due_at, id LIMIT lane.room FOR UPDATE SKIP LOCKED
"""

# Ready and due jobs of these lanes of a queue, in their order, starting at the low-water mark of each.
_PICK = f"""
    SELECT picked.ctid FROM unnest($3::text[], $4::smallint[], $5::int[], $6::timestamptz[], $7::bigint[])
        AS lane(key, priority, room, due, id)
    CROSS JOIN LATERAL (
        SELECT * FROM ({_LANE_JOBS.format(lane="fair_key = lane.key")}) AS keyed
        UNION ALL
        SELECT * FROM ({_LANE_JOBS.format(lane="lane.key IS NULL AND fair_key IS NULL")}) AS unkeyed) AS picked
    LIMIT $2
"""

# The same; if they are too few, also up to `$11` jobs of each lane after the key `$9` at the priority `$10`.
_PICK_ON = f"""
    SELECT ctid FROM (
        ({_PICK}) UNION ALL
        SELECT ctid FROM (
            SELECT ctid, due_at, rate_key, row_number() OVER (PARTITION BY fair_key ORDER BY due_at, id) AS place FROM (
                SELECT ctid, fair_key, rate_key, due_at, id FROM tidemill.job
                WHERE queue = $1 AND priority = $10 AND fair_key > $9 AND state = 'ready' AND fair_key IS NOT NULL
                  AND suspicions = 0 AND task <> ALL ($8::text[])
                ORDER BY fair_key, due_at, id LIMIT $2 FOR UPDATE SKIP LOCKED) AS passed) AS numbered
        WHERE place <= $11 AND due_at <= now() AND rate_key IS NULL) AS picked
    LIMIT $2
"""

#: Claims up to `$2` due jobs from lanes of a queue.
CLAIM_FAIR_JOBS, SUCCEED_AND_CLAIM_FAIR, FINISH_AND_CLAIM_FAIR, _ = FAIR_CLAIMS = claim_statements(
    _PICK, parameters=9, more=("fair_key",)
)

#: The same, and from lanes that have not been found.
CLAIM_AND_WALK, SUCCEED_CLAIM_AND_WALK, FINISH_CLAIM_AND_WALK, _ = WALKING_CLAIMS = claim_statements(
    _PICK_ON, parameters=12, more=("fair_key",)
)

# The first job of a lane with a rate key: its rate, and how many of the key may start at once.
_RATE_OF_HEAD = """
    SELECT coalesce(j.key_rate, q.key_rate) AS rate, coalesce(j.key_burst, q.key_burst, 1) AS burst
    FROM tidemill.job AS j LEFT JOIN tidemill.queue AS q ON q.name = j.queue
    WHERE lane.rate_key IS NOT NULL AND j.fair_key = lane.key AND j.queue = $1 AND j.priority = lane.priority
      AND j.state = 'ready' AND j.due_at <= now() AND j.suspicions = 0 AND j.task <> ALL ($8::text[])
    ORDER BY j.due_at, j.id LIMIT 1
"""

# Locks the rate keys, picks as many jobs of each lane as its rate lets start, and counts them. The lanes of one claim
# have different rate keys. A little more than a whole job counts as one: times have microseconds.
_PICK_RATED = f"""
bucket AS MATERIALIZED (
    SELECT key, filled, extract(epoch FROM clock_timestamp() - filled_at)::float8 AS since
    FROM tidemill.rate_key WHERE key = ANY ($10::text[]) ORDER BY key FOR UPDATE),
found AS MATERIALIZED (
    SELECT picked.ctid AS place, lane.rate_key, lane.rate FROM (
        SELECT lane.key, lane.priority, lane.due, lane.id, lane.rate_key, head.rate,
               CASE WHEN lane.rate_key IS NULL OR head.rate IS NULL THEN lane.room
                    ELSE greatest(0, least(lane.room, coalesce(
                        floor(head.burst - greatest(0, filled - since * head.rate) + 0.00001), 0)))
               END::int AS room
        FROM unnest($3::text[], $4::smallint[], $5::int[], $6::timestamptz[], $7::bigint[], $9::text[])
            WITH ORDINALITY AS lane(key, priority, room, due, id, rate_key, place)
        LEFT JOIN bucket ON bucket.key = lane.rate_key
        LEFT JOIN LATERAL ({_RATE_OF_HEAD}) AS head ON true
        ORDER BY lane.place) AS lane
    CROSS JOIN LATERAL (
        SELECT * FROM ({_LANE_JOBS.format(lane="fair_key = lane.key")}) AS keyed
        UNION ALL
        SELECT * FROM ({_LANE_JOBS.format(lane="lane.key IS NULL AND fair_key IS NULL")}) AS unkeyed) AS picked
    LIMIT $2),
counted_in AS (
    UPDATE tidemill.rate_key AS k
    SET filled = started.filled, filled_at = clock_timestamp(),
        empty_at = clock_timestamp() + make_interval(secs => started.filled / started.rate)
    FROM (SELECT rate_key, rate, greatest(0, bucket.filled - since * rate) + count(*) AS filled
          FROM found JOIN bucket ON bucket.key = found.rate_key WHERE rate IS NOT NULL
          GROUP BY rate_key, rate, bucket.filled, since) AS started
    WHERE k.key = started.rate_key)
"""

#: The same from lanes of which some have a rate key.
CLAIM_RATED_JOBS, SUCCEED_AND_CLAIM_RATED, FINISH_AND_CLAIM_RATED, _ = RATED_CLAIMS = claim_statements(
    "SELECT place FROM found", parameters=11, more=("fair_key",), before=_PICK_RATED
)

#: Makes the buckets of rate keys that have none.
ADD_RATE_KEYS = """
INSERT INTO tidemill.rate_key (key) SELECT key FROM unnest($1::text[]) AS key ORDER BY key ON CONFLICT DO NOTHING
"""

#: How many seconds the first jobs of lanes have to wait for their rates; null if their key has no bucket.
READ_RATE_WAITS = f"""
SELECT lane.rate_key, (greatest(0, k.filled - extract(epoch FROM clock_timestamp() - k.filled_at)::float8 * head.rate)
                       + 1 - head.burst) / head.rate AS wait
FROM unnest($2::text[], $3::smallint[], $4::text[]) AS lane(key, priority, rate_key)
CROSS JOIN LATERAL ({_RATE_OF_HEAD.replace("$8", "$5")}) AS head
LEFT JOIN tidemill.rate_key AS k ON k.key = lane.rate_key WHERE head.rate IS NOT NULL
"""

#: Which of these queues have jobs with fair keys.
FIND_FAIR_QUEUES = """
SELECT queue FROM unnest($1::text[]) AS queue WHERE EXISTS (
    SELECT FROM tidemill.job AS j WHERE j.queue = queue AND j.state = 'ready' AND j.fair_key IS NOT NULL)
"""

_HEAD = """
    SELECT fair_key, due_at, id FROM tidemill.job
    WHERE queue = $1 AND priority = p.priority AND fair_key {after} AND state = 'ready' AND fair_key IS NOT NULL
      AND suspicions = 0 AND task <> ALL ($2::text[])
    ORDER BY fair_key, due_at, id LIMIT 1
"""

#: The lanes of a queue from a priority and key on, and the first job of each: highest priority first.
FIND_LANES = f"""
SELECT p.priority, lane.fair_key, lane.due_at, lane.id,
       CASE WHEN lane.due_at > now() THEN extract(epoch FROM lane.due_at - now())::float8 END AS due_in
FROM generate_series($3::int, 0, -1) AS p(priority) CROSS JOIN LATERAL (
    WITH RECURSIVE lane AS (
        ({_HEAD.format(after=">= (CASE WHEN p.priority = $3 THEN $4::text ELSE '' END)")})
        UNION ALL
        SELECT next.* FROM lane CROSS JOIN LATERAL ({_HEAD.format(after="> lane.fair_key")}) AS next)
    SELECT * FROM lane) AS lane
LIMIT {PAGE}
"""

#: Takes tokens of a rate-limited queue, and gives back those that were not used.
TAKE_TOKENS = "SELECT granted, wait FROM tidemill.take_tokens($1, $2)"
RETURN_TOKENS = "UPDATE tidemill.queue SET tokens = least(burst, tokens + $2) WHERE name = $1"


class _Scan:
    """A walk over all lanes of a queue, page by page: the last one that it has passed."""

    def __init__(self) -> None:
        self.priority, self.key = 9, ""

    @property
    def next_key(self) -> str:
        """The first key that may come next: an empty one, too, is one that a lane may have."""
        return self.key and self.key + FIRST_CHARACTER


class FairQueue:
    """What a worker knows of the lanes of one queue."""

    def __init__(self, *, lowest_first: bool) -> None:
        self.lanes = FairLanes(lowest_first=lowest_first)
        self.scan: _Scan | None = _Scan()
        self.scan_at = 0.0
        self.is_first_scan = True
        self.may_walk = False
        self.walk_until = self.per_lane = 0.0
        self.is_changed = False
        self.marks_round, self.front_at = 1, 0.0
        self.lanes.wake_unkeyed()

    def walk_after(self, offers: Sequence[Offer]) -> _Scan | None:
        """Where a claim of these lanes walks on, if it does: the ring has no others, and none has to come later."""
        if not self.may_walk or self.scan is None or self.lanes.has_work:
            return None
        priority = self.scan.priority
        self.may_walk = all(lane.priority >= priority and lane.rate_key is None for lane, _ in offers)
        return self.scan if self.may_walk else None

    def walked(self, walk: _Scan | None, offers: Sequence[Offer], counts: Counter[LaneName], room: int) -> None:
        """Learn from what a claim has taken from each lane, before the lanes are put back."""
        offered = {(lane.priority, lane.key) for lane, _ in offers}
        if walk is not None:
            passed = [(priority, key) for priority, key in counts if key and (priority, key) not in offered]
            walk.key = max((key for _, key in passed), default=walk.key)
            for priority, key in passed:
                if counts[priority, key] >= self.lanes.quantum or key == walk.key:
                    self.lanes.add_old(priority, key)  # It may have more.
            self.walk_until += len(passed) * self.per_lane
        # Where lanes are long, or other workers walk too, the scan goes on.
        is_long = any(counts[lane.priority, lane.key] >= share for lane, share in offers)
        self.may_walk = self.may_walk and not is_long and (walk is None or counts.total() >= room)


class FairClaims:
    """The claims of a worker from queues with fair keys, on the connection of its other claims."""

    def __init__(self, claims: Claims, weights: Mapping[str, Mapping[str, int]]) -> None:
        self._claims = claims
        self._weights = weights
        self._queues: dict[str, FairQueue] = {}
        self._rate_keys: set[str] = set()  # those that have a bucket
        self._look_at = 0.0

    def __contains__(self, queue: str) -> bool:
        return queue in self._queues

    def weigh(self, weights: Mapping[str, Mapping[str, int]]) -> None:
        """Use these weights, by queue and fair key."""
        self._weights = weights
        for name, queue in self._queues.items():
            queue.lanes.weights = weights.get(name, {})
            queue.lanes.release()  # A rate may have changed, too.

    def wake(self, queue: str, lane: str | None) -> None:
        """A queue has new jobs: without a key (None), in one lane, or in lanes that have to be looked for ("")."""
        if lane is None:
            if (known := self._queues.get(queue)) is not None:
                known.lanes.wake_unkeyed()
            return
        known = self._queues.get(queue) or self._add(queue)
        known.is_changed = True
        if lane:
            known.lanes.wake(int(lane[0]), lane[1:])
        else:
            known.scan, known.is_first_scan = known.scan or _Scan(), True

    def wake_all(self) -> None:
        """Wake-ups may have been missed: look for lanes again."""
        self._look_at = 0.0
        for queue in self._queues.values():
            queue.lanes.wake_unkeyed()

    async def look_for_queues(self, queues: Sequence[str], now: float) -> None:
        """Find the queues that have jobs with fair keys, if wake-ups of them may have been missed."""
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            for row in await self._claims.fetch(FIND_FAIR_QUEUES, list(queues)):
                self.wake(row["queue"], "")

    def next_at(self, queues: Iterable[str]) -> float:
        """When one of these queues needs a turn without a wake-up, in monotonic time."""
        known = [self._queues[queue] for queue in queues if queue in self._queues]
        return min((min(queue.lanes.next_at, _scan_at(queue)) for queue in known), default=math.inf)

    @property
    def has_work(self) -> bool:
        """Whether a lane of any queue may have due jobs."""
        return any(queue.lanes.has_work or queue.may_walk for queue in self._queues.values())

    async def turn(self, finished: Sequence[Finish], name: str, room: int, unknown: Sequence[str], now: float) -> Turn:
        """Finish a batch, and claim up to `room` jobs from the lanes of a queue."""
        queue = self._queues[name]
        queue.lanes.wake_due(now)
        if _scan_at(queue) <= now and not (queue.may_walk and now < queue.walk_until):
            await self._look_for_lanes(name, queue, unknown)
            now = time.monotonic()
        if now >= queue.front_at:
            queue.marks_round += 1
        offers = queue.lanes.offer(room)
        if not offers and not finished and not queue.may_walk:
            return Turn([], 0, math.inf)
        try:
            return await self._claim_offers(finished, name, queue, offers, room, unknown, now)
        except BaseException:
            queue.lanes.claimed(offers, Counter(), 0)  # All stay where they are.
            raise

    async def _claim_offers(
        self,
        finished: Sequence[Finish],
        name: str,
        queue: FairQueue,
        offers: Sequence[Offer],
        room: int,
        unknown: Sequence[str],
        now: float,
    ) -> Turn:
        is_from_front = any(lane.mark_round < queue.marks_round for lane, _ in offers)
        marks = [lane.mark if lane.mark_round == queue.marks_round else None for lane, _ in offers]
        claim: list[Any] = [
            name,
            room,
            [lane.key for lane, _ in offers],
            [lane.priority for lane, _ in offers],
            [min(share, room) for _, share in offers],
            [None if mark is None else mark[0] for mark in marks],
            [0 if mark is None else mark[1] for mark in marks],
            list(unknown),
        ]
        statements = FAIR_CLAIMS
        if rate_keys := [lane.rate_key for lane, _ in offers if lane.rate_key is not None]:
            await self._add_rate_keys(rate_keys)
            statements = RATED_CLAIMS
            claim += [[lane.rate_key for lane, _ in offers], rate_keys]
        walk = queue.walk_after(offers)
        if walk is not None:
            statements = WALKING_CLAIMS
            claim += [walk.key, walk.priority, queue.lanes.quantum]
        finished = sorted(finished, key=_id)  # Index entries are written fastest in their own order.
        rows, refused = await self._claims.finish_and_claim(finished, statements, *claim, self._claims.worker_id)
        by_lane = defaultdict[LaneName, list[Any]](list)
        rows.sort(key=_due_and_id)
        for row in rows:
            by_lane[_lane_name(row)].append(row)
        counts = Counter({lane: len(found) for lane, found in by_lane.items()})
        new: set[LaneName] = set()
        for lane, _ in offers:
            if lane.mark_round < queue.marks_round:
                lane.mark, lane.mark_round = None, queue.marks_round
            if (found := by_lane.get((lane.priority, lane.key))) is not None:
                lane.mark = _due_and_id(found[-1])
                if lane.is_new:
                    new.add((lane.priority, lane.key))
        queue.walked(walk, offers, counts, room)
        if rate_keys:
            await self._hold_used_up(name, queue, offers, counts, unknown)
        queue.lanes.claimed(offers, counts, room)
        queue.is_changed = queue.is_changed or bool(rows)
        if is_from_front:
            # Scans from the front of lanes take a fixed share of the time, as those of plain queues.
            queue.front_at = max(queue.front_at, now) + (time.monotonic() - now) / FRONT_SHARE
        if queue.scan is None and not queue.is_changed and not queue.lanes.has_keys:
            self._queues.pop(name, None)  # Jobs without keys are left to plain claims.
        # A lane that has just come goes before what other lanes have prefetched.
        ahead = queue.lanes.in_turn({lane: found for lane, found in by_lane.items() if lane in new})
        others = queue.lanes.in_turn({lane: found for lane, found in by_lane.items() if lane not in new})
        jobs = [claimed_job(row) for row in (*ahead, *others)]
        return Turn(jobs, refused, math.inf, 0 if self._claims.lowest_first else len(ahead))

    async def _add_rate_keys(self, keys: Sequence[str]) -> None:
        if missing := [key for key in keys if key not in self._rate_keys]:
            await self._claims.fetch(ADD_RATE_KEYS, missing)
            self._rate_keys.update(missing)

    async def _hold_used_up(
        self,
        name: str,
        queue: FairQueue,
        offers: Sequence[Offer],
        counts: Counter[LaneName],
        unknown: Sequence[str],
    ) -> None:
        """Hold the lanes that have given less than they were asked for because of their rates."""
        short = [
            (lane.key, lane.priority, lane.rate_key)
            for lane, share in offers
            if lane.rate_key is not None and counts[lane.priority, lane.key] < share
        ]
        if short:
            for row in await self._claims.fetch(READ_RATE_WAITS, name, *columns(short, 3), list(unknown)):
                if row["wait"] is None:
                    self._rate_keys.discard(row["rate_key"])  # It has been forgotten as unused.
                elif row["wait"] > 0:
                    queue.lanes.hold(row["rate_key"], time.monotonic() + row["wait"])

    async def limited_turn(
        self, name: str, room: int, unknown: Sequence[str], now: float
    ) -> tuple[list[ClaimedJob], float]:
        """Claim from a rate-limited queue; also returns how long to wait for its next token."""
        (granted, wait), *_ = await self._claims.fetch(TAKE_TOKENS, name, room)
        if not granted:
            return [], wait
        turn = await self.turn([], name, granted, unknown, now)
        if unused := granted - len(turn.jobs):
            await self._claims.fetch(RETURN_TOKENS, name, float(unused))
            wait = 0.0 if turn.jobs else wait
        return turn.jobs, wait

    async def _look_for_lanes(self, name: str, queue: FairQueue, unknown: Sequence[str]) -> None:
        """Read the next page of lanes."""
        if queue.scan is None:
            queue.scan, queue.is_changed = _Scan(), False
        scan, lanes, began = queue.scan, queue.lanes, time.monotonic()
        rows = await self._claims.fetch(FIND_LANES, name, list(unknown), scan.priority, scan.next_key)
        now = time.monotonic()
        due: list[Any] = []
        for row in rows:
            if row["due_in"] is not None:
                lanes.wake_at(row["priority"], row["fair_key"], now + row["due_in"])
            else:
                due.append(row)
        # Neighbours share pages of indexes, so they are visited in turn; two workers begin at different ones.
        first = random.randrange(len(due)) if due else 0
        for row in due[first:] + due[:first]:
            lane = lanes.wake(row["priority"], row["fair_key"])
            lane.is_seen = True
            if lane.mark is not None and (row["due_at"], row["id"]) < lane.mark:
                lane.mark = (row["due_at"], row["id"])
        is_rated = any(LANE_SEPARATOR in row["fair_key"] for row in due)
        queue.may_walk = len(due) == PAGE and not is_rated and not self._claims.lowest_first
        queue.per_lane = (now - began) / WALK_SHARE / PAGE
        queue.walk_until = now + PAGE * queue.per_lane
        if len(rows) == PAGE:
            scan.priority, scan.key = rows[-1]["priority"], rows[-1]["fair_key"]
        else:
            queue.scan = None
            lanes.wake_unkeyed()
            lanes.forget_unseen()
        queue.scan_at = now + (now - began) / (FIRST_SHARE if queue.is_first_scan else LATER_SHARE)
        queue.is_first_scan = queue.is_first_scan and queue.scan is not None

    def _add(self, name: str) -> FairQueue:
        queue = self._queues[name] = FairQueue(lowest_first=self._claims.lowest_first)
        queue.lanes.weights = self._weights.get(name, {})
        return queue


_id = attrgetter("id")
_due_and_id = itemgetter(12, 0)
_lane_name = itemgetter(11, 14)


def _scan_at(queue: FairQueue) -> float:
    """When to look for lanes again: soon, if something has changed since the last scan."""
    return queue.scan_at if queue.scan is not None or queue.is_changed else math.inf
