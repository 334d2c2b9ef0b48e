"""How fast runs of a workflow or dag may begin: `app.workflow(Report, rate_key="{tenant}", rate="10/m")`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypedDict

import msgspec

from tidemill.core.codec import decode
from tidemill.core.duration import parse_limit
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.key_template import check_template, fill_in
from tidemill.store.runs.claims import DAG_KIND
from tidemill.store.runs.run_turn import NewRun


class RateOptions(TypedDict, total=False):
    """How fast runs may begin, over all run workers."""

    rate: str | float | None
    """How fast runs of one rate key may begin: "10/m". Without a rate key, all runs of the workflow or dag."""
    rate_key: str | None
    """Runs that share this key begin at most at its rate; `{argument}` is filled in."""
    burst: float | None
    """How many of them may begin at once after a quiet time."""


class RunRate(msgspec.Struct, frozen=True):
    """How fast runs that share a key may begin."""

    key: str
    """A template."""
    rate: float
    burst: float | None

    @classmethod
    def of(
        cls,
        what: str,
        arguments: Collection[str] | None,
        *,
        rate: str | float | None = None,
        rate_key: str | None = None,
        burst: float | None = None,
    ) -> RunRate | None:
        """Check what is declared; `arguments` are None if any may be given."""
        if rate is None:
            if rate_key is not None or burst is not None:
                given = "burst" if rate_key is None else "rate_key"
                raise ConfigError(f"{what}: {given}= is of a rate: add rate=, such as rate='10/m'")
            return None
        if arguments is not None:
            check_template("rate_key", rate_key, arguments, what)
        per_second, at_once = parse_limit(rate, burst, what=what)
        return None if per_second is None else cls(what if rate_key is None else rate_key, per_second, at_once)

    def limit(self, new: NewRun) -> NewRun:
        """A run that begins at this rate."""
        new.key_rate, new.key_burst, new.rate_key = self.rate, self.burst, filled_key("rate_key", self.key, new)
        return new


def filled_key(what: str, template: str, new: NewRun) -> str:
    """A key of a run with the arguments of the run filled in."""

    def arguments() -> dict[str, Any]:
        given = decode(new.input)
        found = given.get("args" if new.kind == DAG_KIND else "value")
        return found if isinstance(found, dict) else {}

    return fill_in(what, template, arguments, f"{'dag' if new.kind == DAG_KIND else 'workflow'} {new.workflow}") or ""
