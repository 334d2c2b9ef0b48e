"""Hosts: what each uses now, and over time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.codec import decode
from tidemill.ops.operator.operation import Arguments, ListOf, doc, operation
from tidemill.store.telemetry.hosts import list_hosts as read_hosts, read_samples
from tidemill.store.transaction import Reader


class ListHosts(Arguments, frozen=True, kw_only=True):
    """Which hosts."""

    within: Annotated[float, doc("Hosts with a sample in the last seconds.", gt=0, le=86_400)] = 60.0


class GetHostSamples(Arguments, frozen=True, kw_only=True):
    """Which host, and over which time."""

    name: Annotated[str, doc("The host.")]
    within: Annotated[float, doc("How far back, in seconds.", gt=0, le=86_400)] = 3600.0
    every: Annotated[float, doc("At most one sample in this many seconds.", ge=1, le=3600)] = 15.0


class Host(msgspec.Struct, frozen=True):
    """A host and its newest sample: sizes in bytes, CPU in cores."""

    name: str
    at: datetime
    age: float
    sample: dict[str, Any]


class SampleAt(msgspec.Struct, frozen=True):
    """What a host used at one time."""

    at: datetime
    sample: dict[str, Any]


class HostSamples(msgspec.Struct, frozen=True):
    """What a host used over time, oldest first."""

    host: str
    items: list[SampleAt]


@operation("GET /hosts", role="viewer")
async def list_hosts(at: Reader, args: ListHosts) -> ListOf[Host]:
    """List the hosts that reported lately, each with its newest sample."""
    rows = await read_hosts(at.database, within=args.within)
    return ListOf([Host(row["host"], row["at"], row["age"], decode(row["data"])) for row in rows])


@operation("GET /hosts/{name}/samples", role="viewer")
async def get_host_samples(at: Reader, args: GetHostSamples) -> HostSamples:
    """Samples of a host over time, for charts. They are kept for a day."""
    every = max(args.every, args.within / 2000)
    rows = await read_samples(at.database, args.name, within=args.within, every=every)
    return HostSamples(args.name, [SampleAt(row["at"], decode(row["data"])) for row in rows])
