"""`tidemill forget`: delete what is stored under a key or tag, with a report."""

from __future__ import annotations

import msgspec
from rich.table import Table

from tidemill.cli.arguments import Json, Yes, options_of
from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import out, print_json, table
from tidemill.ops.admin.forget import DataForgotten, ForgetData, forget_data
from tidemill.ops.operator.operation import Operator


@options_of(ForgetData)
def forget(args: ForgetData, *, yes: Yes = False, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """Delete everything that is stored under a key, or the jobs with a tag, and say how much that was."""

    async def work(at: Operator) -> DataForgotten | None:
        if not args.dry_run and not yes:
            found = await at.do(forget_data, msgspec.structs.replace(args, dry_run=True))
            if not agreed(f"delete {sum(found.removed.values()):,} rows for good"):
                return None
        return await at.do(forget_data, args)

    found = connection.run(work)
    if found is None:
        return None
    return print_json(found) if json else out().print(forgotten_table(found))


def forgotten_table(found: DataForgotten) -> Table:
    """How much of each kind was deleted, and how much is left."""
    made = table("what", "would be deleted" if found.dry_run else "deleted", "left", numbers=("deleted", "left"))
    for name in dict.fromkeys([*found.removed, *found.left]):
        made.add_row(name, f"{found.removed.get(name, 0):,}", f"{found.left.get(name, 0):,}")
    return made
