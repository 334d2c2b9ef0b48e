"""Deleting a person's data: everything that is stored under a key, or the jobs with a tag."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.ops.operator.operation import Arguments, doc, operation
from tidemill.store.maintenance import forget as store
from tidemill.store.transaction import Reader

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class ForgetData(Arguments, frozen=True, kw_only=True):
    """What to delete: everything under a key, or the jobs with a tag."""

    key: Annotated[Text | None, doc("The key of jobs, runs and messages, and the name of entities.")] = None
    tag: Annotated[Text | None, doc("Jobs with this tag.")] = None
    dry_run: Annotated[bool, doc("Count, and delete nothing.")] = False


class DataForgotten(msgspec.Struct, frozen=True):
    """How much was deleted of each kind, or would be; and how much is left, because unfinished work needs it.

    `left` also counts messages that a stream has not read, entities that a monitor follows, and files of pipelines.
    """

    removed: dict[str, int]
    left: dict[str, int]
    dry_run: bool


class _Undone(Exception):
    """Rolls a dry run back."""


@operation("POST /forget", role="admin")
async def forget_data(at: Reader, args: ForgetData) -> DataForgotten:
    """Delete what is stored under a key or tag: jobs, runs with their journals, messages, dead letters, entities, logs.

    What unfinished work still needs is left and counted: let it end, or cancel it, and repeat this. The audit trail
    names a hash of the key.
    """
    if (args.key is None) == (args.tag is None):
        raise ConfigError("say what to delete: either a `key`, or a `tag`")
    removed: dict[str, int] = {}
    left: dict[str, int] = {}
    try:
        async with at.transaction() as tx:
            removed, left = await store.forget(tx, key=args.key, tag=args.tag)
            if args.dry_run:
                raise _Undone
            await tx.audit("data.forget", hashed(args), after={"removed": removed, "left": left})
    except _Undone:
        pass
    return DataForgotten(removed, left, args.dry_run)


def hashed(args: ForgetData) -> str:
    """What the audit trail names: not the key itself, which may be a person's."""
    kind, text = ("key", args.key) if args.key is not None else ("tag", args.tag)
    return f"{kind} sha256:{hashlib.sha256(str(text).encode('utf-8', 'replace')).hexdigest()[:32]}"
