"""Writing what happened to runs: one turn of an owner over all its runs is one statement.

    mine = await commit_turn(database, connection, owner, number, turns)      # the runs that it still owned

Ticks, published events, timers, new jobs, consumed inbox rows, ended and released runs are stored atomically. A
statement has only the parts that its turn needs; most turns have only ticks. The journal's primary key is the fence
behind the owner's number.

A plan is made when the tables are empty and reused when they are full. So each row is looked up by a given key, by
`= ANY (ARRAY(...))` or in a LATERAL with a LIMIT, and never by a join whose size must be estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tidemill.store.database import Database, Executor, columns
from tidemill.store.jobs.history.archive import NOTIFY_RUNS, archive_sql
from tidemill.store.jobs.insert import ADMIT_THROTTLED, WAKE
from tidemill.store.runs.run_turn import MOMENT, RunTurn, successor_json
from tidemill.store.runs.sealing import seal_turns

#: The reason for cancelling a job of a run that no longer needs it.
UNWANTED = "its run no longer needs it"


#: Wakes runs whose parent has ended. Must be selected, because PostgreSQL skips unselected expressions.
ORPHANED = "(SELECT count(pg_notify('tidemill_runs', 'wake')) FROM (SELECT FROM orphans LIMIT 1) AS o)"


def relatives_sql(rows: str) -> str:
    """The parts `delivered` and `orphans` of a statement that ends runs: parents are notified, children are cancelled.

    The rows in `over` have ended. The statement must also select `NOTIFY_RUNS` and `ORPHANED`.
    """
    return f"""
delivered AS (
    INSERT INTO tidemill.inbox (run_id, work, data)
    SELECT parent, parent_work, json_build_object(
        'run', id, 'key', key, 'state', state, 'result', result, 'note', note, 'error', error)
    FROM {rows} WHERE parent IS NOT NULL AND id IN (SELECT id FROM over) RETURNING run_id),
orphans AS (
    INSERT INTO tidemill.inbox (run_id, data)
    SELECT id, json_build_object('kind', 'cancel_asked', 'at', extract(epoch FROM now()),
                                 'reason', 'the run that started it, r' || parent || ', has ended')
    FROM tidemill.run WHERE parent = ANY (ARRAY(SELECT id FROM over)) AND ended_at IS NULL
    RETURNING run_id)"""


#: When a message that a run's version cannot read is tried again.
POSTPONED_SECONDS = 5


_NEW = {"kind": "text", "workflow": "text", "version": "text", "input": "json", "origin": "json"}
# Joined by id: the index on the owner would read all its runs for the few that are written. The CASE hides the
# estimate from the planner, which would expect hardly any row to match and choose a nested loop.
_HELD = "r.id = w.run_id AND r.seq = w.before AND CASE WHEN coalesce(r.owner, 0) = $1 THEN r.turn < $2 END"

# A run that is released while a message arrives may stay asleep, because the inbox is read before the lock is taken.
# `WAKE_RUNS` must follow.
_WHOLE_HEAD = """
    state = coalesce(w.state, r.state), result = coalesce(w.result, r.result), error = coalesce(w.error, r.error),
    note = nullif(CASE WHEN w.state IS NULL THEN coalesce(w.note, r.note) ELSE w.note END, ''),
    buffered = coalesce(w.buffered, r.buffered), version = coalesce(w.version, r.version),
    ended_at = CASE WHEN w.state IS NULL OR w.state = 'needs_attention' THEN r.ended_at ELSE now() END,
    owner = CASE WHEN w.release OR w.state IS NOT NULL THEN NULL ELSE r.owner END,
    suspicions = CASE WHEN w.cleared THEN 0 ELSE r.suspicions END,
    losses = CASE WHEN w.cleared THEN 0 ELSE r.losses END,
    awake = CASE WHEN w.release THEN w.awake OR (
        SELECT true FROM tidemill.inbox AS i WHERE i.run_id = r.id AND i.due_at <= now() AND i.id <> ALL ({used})
        LIMIT 1) IS TRUE ELSE r.awake END"""

#: A turn of one run with one tick: the common case of a run that proceeds alone.
ONE_TICK = """
WITH mine AS (
    UPDATE tidemill.run SET seq = $4, turn = $2
    WHERE id = $3 AND seq = $5 AND coalesce(owner, 0) = $1 AND turn < $2 RETURNING id),
ticks AS (INSERT INTO tidemill.tick (run_id, seq, data) SELECT id, $4, $6::json FROM mine)
SELECT id FROM mine
"""

#: After a lost response: the runs that this turn has written. One that ended or was released has no owner.
WRITTEN_RUNS = """
SELECT r.id FROM unnest($3::bigint[], $4::bigint[]) AS w(run_id, seq)
JOIN tidemill.run AS r ON r.id = w.run_id AND r.seq = w.seq
WHERE r.turn = $2 AND (r.owner = $1 OR r.owner IS NULL)
"""

#: Cancels jobs that their runs no longer need and that have not started.
CANCEL_UNWANTED = f"""
WITH gone AS (
    DELETE FROM tidemill.job WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.job
        WHERE cancel_reason IS NOT NULL AND run_id IS NOT NULL AND state <> 'running'
        ORDER BY id LIMIT 5000 FOR UPDATE SKIP LOCKED))
    RETURNING *),
{archive_sql("gone", state="'cancelled'", note="cancel_reason")}
SELECT id, concurrency_key, {NOTIFY_RUNS} FROM gone
"""

#: Reserves run ids for an owner that starts runs itself.
RESERVE_NUMBERS = """
SELECT nextval(pg_get_serial_sequence('tidemill.run', 'id')) FROM generate_series(1, $1::int)
"""


_write_json = msgspec.json.Encoder().encode


class _Turns:
    """The statement for one turn of many runs, and its parameters."""

    def __init__(self, owner: int, number: int, turns: Sequence[RunTurn]) -> None:
        self.turns = turns
        self._owner = owner
        self.parameters: list[Any] = [owner, number]
        self.parts: list[str] = []
        self.news: list[str] = []
        self.throttled_keys: list[str] = []
        same: list[RunTurn] = []
        more: list[RunTurn] = []
        for turn in turns:
            (same if turn.is_only_ticks else more).append(turn)
        self.over = [turn for turn in more if turn.state is not None and turn.state != "needs_attention"]
        self._add_heads(same, more)
        self._add_ticks()
        if more:
            self._add_journal(more)
        if more := [turn for turn in more if turn.is_more_than_ticks]:
            self._add_inbox(more)
            self._add_asks(more)
            self._add_jobs(more)
        if self.over:
            self._add_ends()
        self.parameters.append(len(turns))

    @property
    def statement(self) -> str:
        news = "".join(f", {each}" for each in self.news)
        missed = f"(SELECT count(*) FROM mine) < ${len(self.parameters)}::bigint"
        return f"WITH {','.join(self.parts)}\nSELECT CASE WHEN {missed} THEN ARRAY(SELECT id FROM mine) END{news}"

    def _rows(self, rows: Sequence[Sequence[Any]], *types: str) -> str:
        """Rows as parameters, one for each column."""
        return self._from_columns(columns(rows, len(types)), types)

    def _from_columns(self, given: list[list[Any]], types: Iterable[str]) -> str:
        return f"ROWS FROM ({', '.join(map(self._set, types, given))})"

    def _array(self, kind: str, values: list[Any]) -> str:
        if values.count(None) == len(values):
            values = []  # `unnest` fills it with NULLs.
        as_text = kind in _WRITTEN_QUICKLY
        self.parameters.append(_array_text(kind, values) if as_text else values)
        return f"${len(self.parameters)}{'::text' if as_text else ''}::{kind}[]"

    def _set(self, kind: str, values: list[Any]) -> str:
        """A column as a set of rows. The driver inspects each element of an array, but not those of a document."""
        if kind in ("document", "json") and None not in values:
            self.parameters.append(b"[" + b",".join(values) + b"]")
            return f"json_array_elements(${len(self.parameters)}::json)"
        if kind == "text" and values.count(None) < len(values):
            self.parameters.append(_write_json(values))
            return f"json_array_elements_text(${len(self.parameters)}::json)"
        return f"unnest({self._array(kind, values)})"

    def _add_heads(self, same: list[RunTurn], more: Sequence[RunTurn]) -> None:
        changed: list[RunTurn] = []
        born: list[RunTurn] = []
        for turn in more:
            (born if turn.new is not None else changed if turn.changes_head else same).append(turn)
        found: list[str] = []
        if same:
            self._add_same(same)
            found.append("same")
        if changed or self.over:
            self._add_changed(changed)
            found.append("changed")
        if born:
            self._add_born(born)
            found.append("born")
        mine = " UNION ALL ".join(f"SELECT id FROM {name}" for name in found)
        self.parts.append(f"\nmine AS MATERIALIZED ({mine})")

    def _add_same(self, turns: Sequence[RunTurn]) -> None:
        """Add runs of which only the number of ticks changes: most of them."""
        runs = self._array("bigint", [t.run_id for t in turns])
        last = self._array("bigint", [t.last for t in turns])
        before = self._array("bigint", [t.before for t in turns])
        self.parts.append(f"""
same AS (
    UPDATE tidemill.run AS r SET seq = w.seq, turn = $2
    FROM unnest({runs}, {last}, {before}) AS w(run_id, seq, before)
    WHERE r.id = ANY ({runs}) AND {_HELD} RETURNING r.id)""")

    def _add_changed(self, turns: Sequence[RunTurn]) -> None:
        """Add runs that end, are released or get a note."""
        runs = self._array("bigint", [t.run_id for t in turns])
        heads = self._rows(
            [
                (
                    *(t.run_id, t.last, t.before, t.state, t.result, t.error, t.note, t.buffered),
                    *(t.version, t.release, t.awake, t.cleared),
                )
                for t in turns
            ],
            *("bigint", "bigint", "bigint", "text", "json", "json", "text", "json"),
            *("text", "boolean", "boolean", "boolean"),
        )
        used = self._array("bigint", [number for turn in turns for number in turn.used])
        self.parts.append(f"""
changed AS (
    UPDATE tidemill.run AS r SET seq = w.seq, turn = $2, {_WHOLE_HEAD.format(used=used)}
    FROM {heads}
        AS w(run_id, seq, before, state, result, error, note, buffered, version, release, awake, cleared)
    WHERE r.id = ANY ({runs}) AND {_HELD}
    RETURNING r.id, r.key, r.parent, r.parent_work, r.state, r.result, r.error, r.note)""")

    def _add_born(self, turns: Sequence[RunTurn]) -> None:
        ends = ("state", "result", "error", "note", "buffered", "release")
        rows = [(t.run_id, t.last, *_fields(t.new, _NEW), *_fields(t, ends)) for t in turns]
        news = self._rows(rows, "bigint", "bigint", *_NEW.values(), "text", "json", "json", "text", "json", "boolean")
        self.parts.append(f"""
born AS (
    INSERT INTO tidemill.run (id, seq, kind, workflow, version, input, origin, state, result, error, note, buffered,
                              owner, turn, ended_at)
    SELECT id, seq, kind, workflow, version, input, origin, coalesce(state, 'running'), result, error, note, buffered,
           CASE WHEN release OR state IS NOT NULL THEN NULL ELSE $1::bigint END, $2::bigint,
           CASE WHEN state IS NOT NULL AND state <> 'needs_attention' THEN now() END
    FROM {news} AS n(id, seq, kind, workflow, version, input, origin, state, result, error, note, buffered,
                                 release)
    ON CONFLICT (id) DO NOTHING RETURNING id)""")

    def _add(self, name: str, rows: list[Any], types: tuple[str, ...], text: str) -> None:
        """Add a part of the statement for these rows, if there are any."""
        if rows:
            self._add_columns(name, columns(rows, len(types)), types, text)

    def _add_columns(self, name: str, given: list[list[Any]], types: tuple[str, ...], text: str) -> None:
        sets = self._from_columns(given, types)
        # IS NOT FALSE keeps the planner from a join whose size it would misestimate; if there are more documents
        # than rows, the NOT NULL of `run_id` rejects the extra ones.
        mine = "(run_id IN (SELECT id FROM mine)) IS NOT FALSE"
        self.parts.append(f"\n{name} AS ({text.format(given=sets, mine=mine)})")

    def _add_ticks(self) -> None:
        runs: list[int] = []
        numbers: list[int] = []
        ticks: list[bytes] = []
        for turn in self.turns:
            number = turn.before
            for tick in turn.ticks:
                number += 1
                runs.append(turn.run_id)
                numbers.append(number)
                ticks.append(tick)
        if ticks:
            self._add_columns("ticks", [runs, numbers, ticks], ("bigint", "bigint", "document"), _INSERT_TICKS)

    def _add_journal(self, turns: Sequence[RunTurn]) -> None:
        """Add what runs show, and their snapshots."""
        self._add(
            "shown",
            [(t.run_id, tick, data) for t in turns for tick, data in t.shown],
            ("bigint", "bigint", "document"),
            "INSERT INTO tidemill.published (run_id, tick, data)"
            " SELECT * FROM {given} AS p(run_id, tick, data) WHERE {mine}",
        )
        self._add(
            "snaps",
            [(t.run_id, t.last, t.snapshot) for t in turns if t.snapshot is not None],
            ("bigint", "bigint", "document"),
            "INSERT INTO tidemill.snapshot (run_id, seq, data)"
            " SELECT * FROM {given} AS s(run_id, seq, data) WHERE {mine}"
            " ON CONFLICT (run_id) DO UPDATE SET seq = excluded.seq, data = excluded.data",
        )

        if trimmed := [(t.run_id,) for t in turns if t.trim and t.snapshot is not None]:
            self._add("trimmed", trimmed, ("bigint",), _TRIM_TICKS)
            self._add("forgotten", trimmed, ("bigint",), _TRIM_PUBLISHED)

    def _add_inbox(self, turns: Sequence[RunTurn]) -> None:
        self._add(
            "used",
            [(t.run_id, inbox_id) for t in turns for inbox_id in t.used],
            ("bigint", "bigint"),
            "DELETE FROM tidemill.inbox WHERE id = ANY (ARRAY(SELECT id FROM {given} AS u(run_id, id) WHERE {mine}))",
        )
        self._add(
            "postponed",
            [(t.run_id, inbox_id) for t in turns for inbox_id in t.postponed],
            ("bigint", "bigint"),
            f"UPDATE tidemill.inbox SET due_at = now() + interval '{POSTPONED_SECONDS} seconds'"
            " WHERE id = ANY (ARRAY(SELECT id FROM {given} AS p(run_id, id) WHERE {mine}))",
        )
        self._add(
            "dropped",
            [(t.run_id, name) for t in turns for name, due in t.timers.items() if due is None],
            ("bigint", "text"),
            "DELETE FROM tidemill.inbox WHERE id = ANY (ARRAY(SELECT i.id FROM {given} AS d(run_id, timer)"
            " CROSS JOIN LATERAL (SELECT id FROM tidemill.inbox"
            " WHERE run_id = d.run_id AND timer = d.timer LIMIT 1) AS i WHERE {mine}))",
        )
        self._add(
            "timers",
            [(t.run_id, name, due) for t in turns for name, due in t.timers.items() if due is not None],
            ("bigint", "text", "float8"),
            "INSERT INTO tidemill.inbox (run_id, timer, due_at)"
            f" SELECT run_id, timer, {MOMENT.format('due')} FROM {{given}} AS t(run_id, timer, due) WHERE {{mine}}"
            " ON CONFLICT (run_id, timer) WHERE timer IS NOT NULL DO UPDATE SET due_at = excluded.due_at",
        )

    def _add_asks(self, turns: Sequence[RunTurn]) -> None:
        self._add(
            "answered",
            [(t.run_id, node) for t in turns for node in t.answered],
            ("bigint", "text"),
            "DELETE FROM tidemill.run_input WHERE ctid = ANY (ARRAY(SELECT i.ctid FROM {given} AS s(run_id, node)"
            " CROSS JOIN LATERAL (SELECT ctid FROM tidemill.run_input"
            " WHERE run_id = s.run_id AND node = s.node LIMIT 1) AS i WHERE {mine}))",
        )
        self._add(
            "renamed",
            [(t.run_id, *names) for t in turns for names in t.renamed],
            ("bigint", "text", "text"),
            "UPDATE tidemill.run_input AS i SET node = n.now FROM {given} AS n(run_id, before, now)"
            " WHERE i.run_id = n.run_id AND i.node = n.before AND (n.run_id IN (SELECT id FROM mine)) IS NOT FALSE",
        )
        self._add(
            "asks",
            [(t.run_id, *ask) for t in turns for ask in t.asks],
            ("bigint", "text", "text", "json", "float8"),
            "INSERT INTO tidemill.run_input (run_id, node, prompt, schema, due_at)"
            f" SELECT run_id, node, prompt, schema, {MOMENT.format('due')}"
            " FROM {given} AS a(run_id, node, prompt, schema, due) WHERE {mine}"
            " ON CONFLICT (run_id, node) DO UPDATE SET prompt = excluded.prompt, due_at = excluded.due_at",
        )

    def _add_jobs(self, turns: Sequence[RunTurn]) -> None:
        jobs = [(turn.run_id, work, job) for turn in turns for work, job in turn.jobs]
        owner = self._owner
        if rows := [
            (run_id, work, *job[:-2], None if job.chain is None else successor_json(job.chain, owner))
            for run_id, work, job in jobs
            if job.keys is None
        ]:
            self._add("jobs", rows, ("bigint", "bigint", *_JOB_TYPES), _INSERT_JOBS.format(**_OPEN))
            self.news.append(_NEW_JOBS)
        if len(rows) < len(jobs):
            keyed = [(run_id, work, *job[:-2], None, *job.keys) for run_id, work, job in jobs if job.keys is not None]
            self._add(
                "keyed",
                keyed,
                ("bigint", "bigint", *_JOB_TYPES, "text", "int", "text", "text", "float8", "float8"),
                _INSERT_JOBS.format(**_KEYED),
            )
            self.news.append(_NEW_KEYED_JOBS)
            named = {job.keys.concurrency_key for _, _, job in jobs if job.keys is not None}
            self.throttled_keys = sorted(key for key in named if key is not None)
        self._add("kept", [(turn.run_id,) for turn in turns if turn.keeps_decisions], ("bigint",), _KEEP_DECISIONS)
        stops = [(turn.run_id, work) for turn in turns for work in turn.stops]
        if stops:
            self._add("stops", stops, ("bigint", "bigint"), _STOP_JOBS)
            self.news.append(_STOPPED.format("stops"))

    def _add_ends(self) -> None:
        given = self._array("bigint", [turn.run_id for turn in self.over])
        self.parts.append(f"""
over AS MATERIALIZED (SELECT id FROM mine WHERE id = ANY ({given})),
ended AS (DELETE FROM tidemill.inbox WHERE run_id = ANY (ARRAY(SELECT id FROM over))),
{relatives_sql("changed")}""")
        self.news += [NOTIFY_RUNS, ORPHANED]
        if any(turn.reaches_out for turn in self.over):
            self.parts.append(_CLEAR_AWAY)
            self.news.append(_STOPPED.format("left_over"))


_INSERT_TICKS = (
    "INSERT INTO tidemill.tick (run_id, seq, data) SELECT * FROM {given} AS t(run_id, seq, data) WHERE {mine}"
)
#: The ticks since the last snapshot stay until the next trim, for processes that follow the run.
_TRIM_TICKS = """
    DELETE FROM tidemill.tick AS k USING (
        SELECT t.run_id, (SELECT seq FROM tidemill.snapshot AS s WHERE s.run_id = t.run_id) AS seq
        FROM {given} AS t(run_id) WHERE {mine}) AS old
    WHERE k.run_id = old.run_id AND k.seq <= old.seq"""
_TRIM_PUBLISHED = """
    DELETE FROM tidemill.published AS p USING (
        SELECT t.run_id, (SELECT seq FROM tidemill.published AS q WHERE q.run_id = t.run_id
                          ORDER BY seq DESC OFFSET 1000 LIMIT 1) AS seq
        FROM {given} AS t(run_id) WHERE {mine}) AS old
    WHERE p.run_id = old.run_id AND p.seq <= old.seq"""

_CLEAR_AWAY = f"""
unasked AS (DELETE FROM tidemill.run_input WHERE run_id = ANY (ARRAY(SELECT id FROM over))),
left_over AS (
    UPDATE tidemill.job SET cancel_reason = '{UNWANTED}'
    WHERE run_id = ANY (ARRAY(SELECT id FROM over)) AND cancel_reason IS NULL RETURNING id)"""
#: Jobs that another transaction has stored in the place of one that ended, while a statement ended their run.
_STOP_FOLLOWING = f"""
WITH stopped AS (
    UPDATE tidemill.job SET cancel_reason = '{UNWANTED}' WHERE run_id = ANY ($1) AND cancel_reason IS NULL RETURNING id)
SELECT count(pg_notify('tidemill_control', '')) FROM (SELECT FROM stopped LIMIT 1) AS s
"""
_NEW_JOBS = "(SELECT count(pg_notify('tidemill_jobs', queue)) FROM (SELECT DISTINCT queue FROM jobs) AS queues)"
_NEW_KEYED_JOBS = _NEW_JOBS.replace("FROM jobs", "FROM keyed")
_STOPPED = "(SELECT count(pg_notify('tidemill_control', '')) FROM (SELECT FROM {0} LIMIT 1) AS s_{0})"

_JOB_TYPES = ("text", "text", "json", "smallint", "float8", "float8", "float8", "json", "json", "json", "json")
_INSERT_JOBS = """
    INSERT INTO tidemill.job (run_id, work, queue, task, args, priority, due_at, deadline, options, origin,
                              required_model, tags, successor{into})
    SELECT run_id, work, queue, task, args, priority,
           coalesce(to_timestamp(at), now() + make_interval(secs => delay)), to_timestamp(deadline), options, origin,
           options ->> 'required_model',
           CASE WHEN tags IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(tags)) END,
           coalesce(successor, '{{{{}}}}'){values}
    FROM {{given}} AS j(run_id, work, queue, task, args, priority, at, delay, deadline, options, origin, tags,
                        successor{gate})
    WHERE {{mine}} RETURNING {wake} AS queue"""
_OPEN = {"into": "", "values": "", "gate": "", "wake": "queue"}
_KEYED = {
    "into": ", concurrency_key, max_concurrency, fair_key, rate_key, key_rate, key_burst, state, note",
    "values": """, key, CASE WHEN key IS NOT NULL THEN most END, lane, rate_key, key_rate, key_burst,
           CASE WHEN key IS NULL THEN 'ready' ELSE 'throttled' END,
           'waits for a slot of concurrency key ' || key""",
    "gate": ", key, most, lane, rate_key, key_rate, key_burst",
    "wake": WAKE.format(""),
}
#: What follows from jobs in progress is decided by their runs again: a node that was to follow may have been cancelled.
_KEEP_DECISIONS = """
    UPDATE tidemill.job SET successor = '{{}}'
    WHERE run_id = ANY (ARRAY(SELECT run_id FROM {given} AS k(run_id) WHERE {mine})) AND successor::text <> '{{}}'"""
_STOP_JOBS = f"""
    UPDATE tidemill.job SET cancel_reason = '{UNWANTED}'
    WHERE cancel_reason IS NULL AND id = ANY (ARRAY(
        SELECT j.id FROM {{given}} AS s(run_id, work) CROSS JOIN LATERAL (
            SELECT id FROM tidemill.job WHERE run_id = s.run_id AND work = s.work LIMIT 1) AS j
        WHERE {{mine}})) RETURNING id"""


#: The driver inspects every element of an array before it sends it; text is faster for numbers. JSON that is never NULL
#: is sent as one JSON array, with a "document" for each row.
_WRITTEN_QUICKLY = frozenset({"bigint", "int", "smallint", "float8", "boolean"})
#: Only Tidemill makes these, so that each is a plain `int` or `bool` and the whole list is written in one call.
_OUR_OWN = frozenset({"bigint", "boolean"})


def _array_text(kind: str, values: list[Any]) -> str:
    """An array of numbers or truth values in PostgreSQL's text format."""
    if kind in _OUR_OWN and None not in values:
        return "{" + repr(values)[1:-1] + "}"
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def _fields(of: Any, names: Iterable[str]) -> list[Any]:
    return [getattr(of, name) for name in names]


async def commit_turn(
    database: Database, connection: Executor, owner: int, number: int, turns: Sequence[RunTurn]
) -> set[int]:
    """Write one numbered turn of many runs; returns those that the owner still owned."""
    turns = seal_turns(database, turns)
    if len(turns) == 1 and len(turns[0].ticks) == 1 and turns[0].is_only_ticks:
        (one,) = turns
        given = (owner, number, one.run_id, one.last, one.before, one.ticks[0])
        return {row[0] for row in await connection.fetch(database.sql(ONE_TICK), *given)}
    turn = _Turns(owner, number, turns)
    ((found, *_),) = await connection.fetch(database.sql(turn.statement), *turn.parameters)
    mine = {each.run_id for each in turns} if found is None else set(found)
    if stopped := [each.run_id for each in turn.over if each.stops and each.run_id in mine]:
        await connection.execute(database.sql(_STOP_FOLLOWING), stopped)
    if turn.throttled_keys:  # If the owner dies here, maintenance admits them.
        await connection.execute(database.sql(ADMIT_THROTTLED), turn.throttled_keys)
    return mine


async def cancel_unwanted(database: Database) -> int:
    """Cancel jobs that their runs no longer need, unless they have started; returns how many."""
    async with database.transaction(patience=None) as connection:
        rows = await connection.fetch(database.sql(CANCEL_UNWANTED))
        if keys := sorted({row["concurrency_key"] for row in rows if row["concurrency_key"] is not None}):
            await connection.execute(database.sql(ADMIT_THROTTLED), keys)
    return len(rows)


async def reserve_numbers(database: Database, count: int) -> list[int]:
    """Reserve ids for runs that an owner will start itself."""
    return [row[0] for row in await database.fetch(RESERVE_NUMBERS, count, patience=None)]
