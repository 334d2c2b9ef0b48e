"""`tidemill explain ID`: why anything is in its state, what it followed from, and what followed from it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import Json, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.jobs.page import job_page
from tidemill.cli.monitors.view import print_alert
from tidemill.cli.pipelines.open import AppOption, PipelineWork
from tidemill.cli.pipelines.page import print_state
from tidemill.cli.render import indented, out, print_json, state, table
from tidemill.cli.runs.list import print_traceback
from tidemill.cli.streams.view import attempt_lines, dead_page
from tidemill.core.errors import ConfigError
from tidemill.core.printable import on_one_line
from tidemill.ops.causes import Related
from tidemill.ops.explain import (
    FORMS,
    ExplainObject,
    Explanation,
    WhyNot,
    explain as explain_object,
    explain_why_not,
    followed_by,
)


@options_of(ExplainObject)
def explain(
    args: ExplainObject,
    id: Annotated[str | None, Parameter(help=f"The id: {FORMS}.")] = None,
    /,
    *,
    why_not: Annotated[
        tuple[str, str] | None,
        Parameter(help="Instead of an id: why this TRIGGER has opened no alert for this ENTITY."),
    ] = None,
    monitor: Annotated[str | None, Parameter(help="With --why-not: the monitor of the trigger.")] = None,
    app: AppOption = None,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Explain anything: a job (7), a run (r7), a node (r7/NODE), a schedule, a state of a pipeline, an alert (a7)."""
    if (id is None) == (why_not is None):
        raise ConfigError("name what to explain: an ID, or --why-not TRIGGER ENTITY")
    work = connection if app is None else PipelineWork(app, None, connection, needs_pipelines=False)
    if why_not is not None:
        wanted = WhyNot(trigger=why_not[0], entity=why_not[1], monitor=monitor)
        found = work.run(lambda at: at.do(explain_why_not, wanted))
    else:
        known = msgspec.structs.replace(args, id=id)
        found = work.run(lambda at: at.do(explain_object, known))
    if json:
        return print_json(found)
    named = "" if app is None and connection.server_url is not None else app
    return _print(_with_application(found, named), forward=args.forward)


def _with_application(found: Explanation, app: str | None) -> Explanation:
    """Its commands name the application as it was given here; through a server they need none."""
    if app is None:
        return found

    def named(lines: list[str]) -> list[str]:
        return [line.replace(" APP ", f" {app} " if app else " ") for line in lines]

    details = found.details and msgspec.structs.replace(found.details, why=named(found.details.why))
    return msgspec.structs.replace(found, why=named(found.why), details=details)


def _print(found: Explanation, *, forward: bool) -> None:
    console = out()
    if found.job is not None:
        console.print(job_page(found.job))
    elif found.details is not None:
        print_state(found.details, found.why)
    elif found.alert is not None:
        print_alert(found.alert)
    elif found.dead_letter is not None:
        console.print(dead_page(found.dead_letter))
    else:
        console.print(Text.assemble((f"{found.kind} {on_one_line(found.id)}  ", "bold"), state(found.state)))
        console.print("\nwhy", style="bold")
        for sentence in found.why:
            console.print(indented(sentence), soft_wrap=True, markup=False)
        if found.run is not None:
            print_traceback(found.run)
        if found.message is not None:
            for line in attempt_lines(found.message.history):
                console.print(line, soft_wrap=True)
            if found.message.handed_over and not forward:
                console.print("\nhanded over", style="bold")
                console.print(_followers(list(map(followed_by, found.message.handed_over))))
        if found.trigger is not None and found.trigger.state is not None:
            console.print("\nstate at that check", style="bold")
            state_text = msgspec.json.encode(found.trigger.state).decode()
            console.print(f"  {state_text}", soft_wrap=True, markup=False)
    if (command := _next_command(found)) is not None:
        console.print(f"\n{command}", style="dim", soft_wrap=True)
    if any(each.id for each in found.because) or found.alert is not None:  # "why" names the person or program
        console.print("\nfollowed from", style="bold")
        console.print(_followers(found.because))
    if not forward:
        return
    console.print("\nfollowed by", style="bold")
    console.print(
        _followers(found.followed) if found.followed else "  nothing yet", style="" if found.followed else "dim"
    )


def _next_command(found: Explanation) -> str | None:
    """What can be done about it, where that is one command."""
    if found.job is not None and found.state == "failed":
        return f"run it again: tidemill retry {found.id}"
    if found.dead_letter is not None:
        return f"try it again: tidemill stream replay {found.dead_letter.stream} --id {found.id}"
    if found.alert is not None and found.state in ("open", "fired"):
        return f"acknowledge it: tidemill monitor ack {found.id}"
    if found.run is not None and found.state in ("failed", "cancelled", "timed_out"):
        if found.run.shape == "dag":
            return f"do again what did not succeed: tidemill dag rerun {found.id}"
        return f"go on after one of its ticks: tidemill fork {found.id} --at TICK (tidemill run {found.id} lists them)"
    return None


def _followers(followed: list[Related]) -> Table:
    made = table("id", "what", "state")
    what = made.columns[1]  # Requests and paths are shown whole.
    what.no_wrap, what.overflow, what.max_width = False, "fold", None
    for each in followed:
        made.add_row(each.id, each.what, each.state)
    return made
