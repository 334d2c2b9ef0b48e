"""`tidemill runs migrate`: moves runs of older versions of their workflow to the present one."""

from __future__ import annotations

from cyclopts import App

from tidemill.cli.arguments import AppOption, Json, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import counted, out, print_json
from tidemill.cli.runs.list import runs
from tidemill.core.errors import ConfigError
from tidemill.ops.runs.migrate import MigrateRuns, RunsMigrated, StuckRuns, migrate_runs

MOST_IDS = 5

commands = App(name="runs", help="List durable runs; move those of older versions to the present one.")
commands.default(runs)


@commands.command
@options_of(MigrateRuns)
def migrate(
    args: MigrateRuns, *, app: AppOption = None, json: Json = False, connection: ServerOptions = ANYWHERE
) -> None:
    """Move unfinished runs of older versions to the present version of their workflow, where it has all they need."""
    if app is None and connection.server_url is None:
        raise ConfigError("runs are moved by the code of their workflows: add --app app.py")
    done = connection.do(migrate_runs, args, app=app)
    if json:
        return print_json(done)
    out().print(_moved(done))
    if done.owned:
        out().print(f"{counted(done.owned, 'run')} driven by a run worker now: moved when it releases them")
    for stuck in done.stuck:
        out().print(stuck_line(stuck))
    return None


def _moved(done: RunsMigrated) -> str:
    if done.dry_run:
        return f"{counted(done.count, 'run')} would go on with the present version of their workflow"
    return f"{counted(done.count, 'run')} moved to the present version of their workflow"


def stuck_line(stuck: StuckRuns) -> str:
    """Runs that cannot go on, and why."""
    ids = ", ".join(f"r{each}" for each in stuck.ids[:MOST_IDS])
    more = ", ..." if stuck.count > MOST_IDS else ""
    return f"{counted(stuck.count, 'run')} of {stuck.workflow} {stuck.version} ({ids}{more}) cannot go on: {stuck.why}"
