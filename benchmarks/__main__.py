"""`python -m benchmarks SUITE [--quick] [--json]`: run a suite, or `all`, and print what was measured."""

import argparse
import time
import traceback
from collections.abc import Callable

from benchmarks import (
    chaos,
    contenders,
    dags,
    flows,
    jobs,
    monitors,
    pipelines,
    report,
    server,
    server_api,
    streams,
    venv,
)

Rows = list[report.Row]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    suites = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--quick", action="store_true", help="under a minute, once the peers are installed")
    options.add_argument("--json", action="store_true", help="only JSON lines on stdout")
    options.add_argument("--peers-only", action="store_true", help="leave ours out, in jobs")
    for name, (help, _) in SUITES.items():
        suites.add_parser(name, parents=[options], help=help)
    suites.add_parser("all", parents=[options], help="all suites, in one table with the goals")
    arguments = parser.parse_args()
    began = time.monotonic()
    if arguments.suite == "all":
        report.emit("all", run_all(arguments), json_only=arguments.json)
    else:
        report.emit(arguments.suite, SUITES[arguments.suite][1](arguments), json_only=arguments.json)
    contenders.say(f"took {time.monotonic() - began:.0f} s")


def run_all(arguments: argparse.Namespace) -> Rows:
    """The rows of all suites; one that fails is reported and leaves none."""
    rows: Rows = []
    for name, (_, run) in SUITES.items():
        began = time.monotonic()
        try:
            rows += run(arguments)
        except Exception:  # noqa: BLE001 - the other suites are worth as much
            contenders.say(traceback.format_exc())
        contenders.say(f"{name} took {time.monotonic() - began:.0f} s")
    return rows


def run_jobs(arguments: argparse.Namespace) -> Rows:
    venv.ensure()
    plan = jobs.QUICK if arguments.quick else jobs.FULL
    deadline = time.monotonic() + plan.budget_s
    with server.running() as postgres:
        return jobs.Run(postgres, plan, deadline=deadline, peers_only=arguments.peers_only).rows()


def run_chaos(arguments: argparse.Namespace) -> Rows:
    return chaos.run(chaos.QUICK if arguments.quick else chaos.FULL)


def run_flows(arguments: argparse.Namespace) -> Rows:
    venv.ensure()
    plan = flows.QUICK if arguments.quick else flows.FULL
    deadline = time.monotonic() + plan.budget_s
    with server.running() as postgres:
        return flows.Run(postgres, plan, deadline=deadline).rows()


def run_server(arguments: argparse.Namespace) -> Rows:
    plan = server_api.QUICK if arguments.quick else server_api.FULL
    with server.running() as postgres:
        return server_api.run(postgres, plan)


def run_dags(arguments: argparse.Namespace) -> Rows:
    venv.ensure()
    plan = dags.QUICK if arguments.quick else dags.FULL
    deadline = time.monotonic() + plan.budget_s
    with server.running() as postgres:
        return dags.Run(postgres, plan, deadline=deadline).rows()


def run_monitors(arguments: argparse.Namespace) -> Rows:
    venv.ensure()
    with server.running() as postgres:
        return monitors.Run(postgres, monitors.QUICK if arguments.quick else monitors.FULL).rows()


def run_pipelines(arguments: argparse.Namespace) -> Rows:
    with server.running() as postgres:
        return pipelines.Run(postgres, pipelines.QUICK if arguments.quick else pipelines.FULL).rows()


def run_streams(arguments: argparse.Namespace) -> Rows:
    venv.ensure()
    with server.running() as postgres:
        return streams.Run(postgres, streams.QUICK if arguments.quick else streams.FULL).rows()


SUITES: dict[str, tuple[str, Callable[[argparse.Namespace], Rows]]] = {
    "jobs": ("jobs, beside other engines and the raw limit", run_jobs),
    "flows": ("workflows, durable and in memory, beside other engines", run_flows),
    "dags": ("dags beside plain jobs and Prefect, and warm models", run_dags),
    "streams": ("streams, beside other consumers", run_streams),
    "pipelines": ("states of files, beside other build tools", run_pipelines),
    "monitors": ("ingest, decoders, alerts and backtests of monitors", run_monitors),
    "server": ("the HTTP API and the live stream, on a long history", run_server),
    "chaos": ("what is lost and how long recovery takes", run_chaos),
}


if __name__ == "__main__":
    main()
