"""`tidemill deploy check next.py`: what would break, be rebuilt, appear or go with the next version."""

from __future__ import annotations

from cyclopts import App

from tidemill.cli.arguments import Application, Json
from tidemill.cli.connection_options import HERE, ConnectionOptions, ServerOptions
from tidemill.cli.render import counted, out, print_json
from tidemill.cli.runs.migrate import MOST_IDS, stuck_line
from tidemill.ops.admin.deploy import DeployCheck, check_deploy
from tidemill.ops.operator.operation import Nothing

commands = App(name="deploy", help="Check the next version of the application before it is deployed.")


@commands.command
def check(app: Application, /, *, json: Json = False, connection: ConnectionOptions = HERE) -> int:
    """Say which runs, jobs, states and schedules would not go on with this version. Changes nothing.

    The exit status is 1 if something would break.
    """
    connection.arguments()  # An error if a server is named: the code is here.
    here = ServerOptions(connection.database_url, connection.directory, connection.schema, connection.application)
    found = here.do(check_deploy, Nothing(), app=app)
    if json:
        print_json(found)
    else:
        _print(found)
    return 1 if found.breaks else 0


def _print(found: DeployCheck) -> None:
    console = out()
    stuck = sum(each.count for each in found.stuck)
    console.print(f"application {found.application}", style="bold")
    console.print(f"  runs       {found.runs:,} checked: {found.migrated:,} would be migrated, {stuck:,} cannot go on")
    misfits = sum(each.count for each in found.misfits)
    console.print(f"  jobs       {found.jobs:,} waiting: {misfits:,} do not fit")
    console.print(f"  states     {sum(each.count for each in found.states):,} would be rebuilt or are left over")
    for each in found.stuck:
        console.print(f"breaks: {stuck_line(each)}", style="red")
    for job in found.misfits:
        ids = ", ".join(str(each) for each in job.ids[:MOST_IDS]) + (", ..." if job.count > MOST_IDS else "")
        which = f"{counted(job.count, 'job')} of task {job.task} in queue {job.queue} ({ids})"
        console.print(f"breaks: {which}: {job.why}", style="red")
    for state in found.states:
        console.print(f"{counted(state.count, 'state')} of {state.pipeline}/{state.stage}: {state.why}")
    for schedule in found.schedules:
        breaks = "breaks: " if schedule.breaks else ""
        console.print(f"{breaks}schedule {schedule.name} {schedule.change}", style="red" if schedule.breaks else None)
    for gone in found.without_code:
        console.print(f"{gone.kind} {gone.name} has no code in this version")
    console.print("something would break" if found.breaks else "nothing would break", style="bold")
