"""`python -m benchmarks SUITE [--quick] [--json]`: run a suite, or `all`, and print what was measured."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from benchmarks import costs, footprint, growth, ray_cluster
from benchmarks.chaos import suite as chaos
from benchmarks.dags import suite as dags
from benchmarks.flows import suite as flows
from benchmarks.jobs import suite as jobs
from benchmarks.monitors import suite as monitors
from benchmarks.pipelines import suite as pipelines
from benchmarks.server import suite as server_api
from benchmarks.shared import contenders, postgres, report, venv
from benchmarks.streams import suite as streams

Rows = list[report.Row]

#: How long a quick run of one suite, and of all of them, may take.
SUITE_QUICK_S, ALL_QUICK_S = 180.0, 14 * 60.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    suites = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--quick", action="store_true", help="under two minutes, once the peers are installed")
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
    """The rows of all suites, each in a process of its own; one that fails or takes too long is a row that says so."""
    rows: Rows = []
    began = time.monotonic()
    for name in SUITES:
        left = max(10.0, ALL_QUICK_S - (time.monotonic() - began))
        rows += run_apart(name, arguments, timeout=min(SUITE_QUICK_S, left) if arguments.quick else None)
    return rows


def run_apart(name: str, arguments: argparse.Namespace, timeout: float | None) -> Rows:
    """The rows of one suite, run in a process of its own."""
    began = time.monotonic()
    words = [sys.executable, "-m", "benchmarks", name, "--json", *(["--quick"] if arguments.quick else [])]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=timeout)
        failure = f"failed with status {process.returncode}" if process.returncode else None
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        said, failure = "", f"took longer than {timeout:.0f} s"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    contenders.say(f"{name} took {time.monotonic() - began:.0f} s")
    rows = [msgspec.json.decode(line, type=report.Row) for line in said.splitlines() if line.startswith("{")]
    return rows if failure is None else [*rows, report.Row(name, None, failure, None, None, "")]


def run_jobs(arguments: argparse.Namespace) -> Rows:
    venv.ensure()
    plan = jobs.QUICK if arguments.quick else jobs.FULL
    deadline = time.monotonic() + plan.budget_s
    with postgres.running() as server:
        return jobs.Run(server, plan, deadline=deadline, peers_only=arguments.peers_only).rows()


def run_chaos(arguments: argparse.Namespace) -> Rows:
    return chaos.run(chaos.QUICK if arguments.quick else chaos.FULL)


def run_flows(arguments: argparse.Namespace) -> Rows:
    venv.ensure()
    plan = flows.QUICK if arguments.quick else flows.FULL
    deadline = time.monotonic() + plan.budget_s
    with postgres.running() as server:
        return flows.Run(server, plan, deadline=deadline).rows()


def run_server(arguments: argparse.Namespace) -> Rows:
    plan = server_api.QUICK if arguments.quick else server_api.FULL
    with postgres.running() as server:
        return server_api.run(server, plan)


def run_dags(arguments: argparse.Namespace) -> Rows:
    venv.ensure()
    plan = dags.QUICK if arguments.quick else dags.FULL
    deadline = time.monotonic() + plan.budget_s
    with postgres.running() as server:
        return dags.Run(server, plan, deadline=deadline).rows()


def run_monitors(arguments: argparse.Namespace) -> Rows:
    venv.ensure()
    with postgres.running() as server:
        return monitors.Run(server, monitors.QUICK if arguments.quick else monitors.FULL).rows()


def run_pipelines(arguments: argparse.Namespace) -> Rows:
    with postgres.running() as server:
        return pipelines.Run(server, pipelines.QUICK if arguments.quick else pipelines.FULL).rows()


def run_footprint(arguments: argparse.Namespace) -> Rows:
    return footprint.run(footprint.QUICK if arguments.quick else footprint.FULL)


def run_growth(arguments: argparse.Namespace) -> Rows:
    with postgres.running() as server:
        return growth.run(server, growth.QUICK if arguments.quick else growth.FULL)


def run_streams(arguments: argparse.Namespace) -> Rows:
    venv.ensure()
    with postgres.running() as server:
        return streams.Run(server, streams.QUICK if arguments.quick else streams.FULL).rows()


def run_ray(arguments: argparse.Namespace) -> Rows:
    with postgres.running() as server:
        return ray_cluster.run(server, ray_cluster.QUICK if arguments.quick else ray_cluster.FULL)


def run_costs(arguments: argparse.Namespace) -> Rows:
    with postgres.running() as server:
        return costs.run(server, costs.QUICK if arguments.quick else costs.FULL)


SUITES: dict[str, tuple[str, Callable[[argparse.Namespace], Rows]]] = {
    "jobs": ("jobs, beside other engines and the raw limit", run_jobs),
    "flows": ("workflows, durable and in memory, beside other engines", run_flows),
    "dags": ("dags beside plain jobs and Prefect, and warm models", run_dags),
    "streams": ("streams, beside other consumers", run_streams),
    "pipelines": ("states of files, beside other build tools", run_pipelines),
    "monitors": ("ingest, decoders, alerts and backtests of monitors", run_monitors),
    "server": ("the HTTP API and the live stream, on a long history", run_server),
    "footprint": ("processes, memory and connections of `tidemill up`, and cold starts of commands", run_footprint),
    "growth": ("how costs grow: the exponent over three sizes", run_growth),
    "costs": ("what one job, step, message and state costs in Python and PostgreSQL", run_costs),
    "ray": ("jobs on a Ray cluster, beside bare Ray tasks", run_ray),
    "chaos": ("what is lost and how long recovery takes", run_chaos),
}


if __name__ == "__main__":
    main()
