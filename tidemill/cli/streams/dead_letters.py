"""`tidemill stream dead-letters` and `tidemill stream replay`: messages that were given up, and another attempt."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from tidemill.cli.arguments import Json, Shown, Yes, id_parameter, options_of
from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.paging import read_pages
from tidemill.cli.render import counted, out, print_json
from tidemill.cli.streams.view import dead_page, dead_table
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import NotFoundError
from tidemill.ops.operator.operation import Operator
from tidemill.ops.streams.dead_letters import (
    DeadLetterLine,
    GetDeadLetter,
    ListDeadLetters,
    ReplayDeadLetters,
    get_dead_letter,
    list_dead_letters,
    preview_replay_dead_letters,
    replay_dead_letters,
)
from tidemill.ops.streams.streams import ListStreams, list_streams

Stream = Annotated[str | None, Parameter(help="Only of this stream.")]
Ids = Annotated[list[int] | None, id_parameter("dead letter", "Only this one; may be repeated.")]


@options_of(ListDeadLetters, ids={"id": "dead letter"})
def dead_letters(
    args: ListDeadLetters, stream: Stream = None, /, *, limit: Shown = 25, json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> None:  # fmt: skip
    """List messages that were given up, the newest first; one alone is shown in full."""
    wanted = msgspec.structs.replace(args, stream=stream)

    async def work(at: Operator) -> list[DeadLetterLine]:
        letters, _ = await read_pages(at, list_dead_letters, wanted, limit)
        return [await at.do(get_dead_letter, GetDeadLetter(id=each.id)) if each.truncated else each for each in letters]

    letters = connection.run(work)
    if json:
        return print_json(letters)
    if not letters:
        return out().print(f"no dead letters{connection.run(lambda at: _meant_stream(at, stream))}", style="dim")
    return out().print(dead_page(letters[0]) if args.id and len(letters) == 1 else dead_table(letters))


@options_of(ReplayDeadLetters, without=("ids", "up_to"))
def replay(
    args: ReplayDeadLetters, stream: Stream = None, /, *, id: Ids = None, yes: Yes = False,
    connection: ServerOptions = ANYWHERE,
) -> None:  # fmt: skip
    """Try dead letters again, with all their attempts; prints how many."""
    wanted = msgspec.structs.replace(args, stream=stream, ids=id or None)

    async def work(at: Operator) -> int | None:
        meant = wanted
        if wanted == ReplayDeadLetters(stream=None) and not yes:
            found = await at.do(preview_replay_dead_letters, wanted)
            if not agreed(f"replay all {found.count:,} dead letters of all streams"):
                return None
            meant = msgspec.structs.replace(wanted, up_to=found.up_to)
        return (await at.do(replay_dead_letters, meant)).count

    count = connection.run(work)
    if count == 0 and id:
        ids = ", ".join(f"d{each}" for each in id)
        meant = connection.run(lambda at: _meant_stream(at, stream))
        why = f"stream {stream} has none{meant}" if meant else "it never existed, or was replayed"
        raise NotFoundError(f"no dead letter matches {ids}: {why}")
    if count is not None:
        meant = "" if count else connection.run(lambda at: _meant_stream(at, stream))
        out().print(f"{counted(count, 'dead letter is', 'dead letters are')} tried again{meant}")


async def _meant_stream(at: Operator, name: str | None) -> str:
    """The stream that was probably meant, if no stream has this name."""
    known = [] if name is None else [each.name for each in (await at.do(list_streams, ListStreams())).items]
    return "" if name is None or name in known else did_you_mean(name, known)
