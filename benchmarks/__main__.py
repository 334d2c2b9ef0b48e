"""`python -m benchmarks SUITE [--quick] [--json]`: run a suite and print what it measured."""

import argparse
import time

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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    suites = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--quick", action="store_true", help="under a minute, once the peers are installed")
    options.add_argument("--json", action="store_true", help="only JSON lines on stdout")
    suite = suites.add_parser("jobs", parents=[options], help="jobs, beside other engines and the raw limit")
    suite.add_argument("--peers-only", action="store_true", help="leave ours out")
    suite.set_defaults(run=run_jobs)
    suite = suites.add_parser("chaos", parents=[options], help="what is lost and how long recovery takes")
    suite.set_defaults(run=run_chaos)
    suite = suites.add_parser("flows", parents=[options], help="workflows, durable and in memory, beside other engines")
    suite.set_defaults(run=run_flows)
    suite = suites.add_parser("dags", parents=[options], help="dags beside plain jobs and Prefect, and warm models")
    suite.set_defaults(run=run_dags)
    suite = suites.add_parser("monitors", parents=[options], help="ingest, decoders, alerts and backtests of monitors")
    suite.set_defaults(run=run_monitors)
    suite = suites.add_parser("pipelines", parents=[options], help="states of files, beside other build tools")
    suite.set_defaults(run=run_pipelines)
    suite = suites.add_parser("server", parents=[options], help="the HTTP API and the live stream, on a long history")
    suite.set_defaults(run=run_server)
    suite = suites.add_parser("streams", parents=[options], help="streams, beside other consumers")
    suite.set_defaults(run=run_streams)
    arguments = parser.parse_args()
    began = time.monotonic()
    arguments.run(arguments)
    contenders.say(f"took {time.monotonic() - began:.0f} s")


def run_jobs(arguments: argparse.Namespace) -> None:
    venv.ensure()
    plan = jobs.QUICK if arguments.quick else jobs.FULL
    deadline = time.monotonic() + plan.budget_s
    with server.running() as postgres:
        rows = jobs.Run(postgres, plan, deadline=deadline, peers_only=arguments.peers_only).rows()
    report.emit("jobs", rows, json_only=arguments.json)


def run_chaos(arguments: argparse.Namespace) -> None:
    rows = chaos.run(chaos.QUICK if arguments.quick else chaos.FULL)
    report.emit("chaos", rows, json_only=arguments.json)


def run_flows(arguments: argparse.Namespace) -> None:
    venv.ensure()
    plan = flows.QUICK if arguments.quick else flows.FULL
    deadline = time.monotonic() + plan.budget_s
    with server.running() as postgres:
        rows = flows.Run(postgres, plan, deadline=deadline).rows()
    report.emit("flows", rows, json_only=arguments.json)


def run_server(arguments: argparse.Namespace) -> None:
    plan = server_api.QUICK if arguments.quick else server_api.FULL
    with server.running() as postgres:
        rows = server_api.run(postgres, plan)
    report.emit("server", rows, json_only=arguments.json)


def run_dags(arguments: argparse.Namespace) -> None:
    venv.ensure()
    plan = dags.QUICK if arguments.quick else dags.FULL
    deadline = time.monotonic() + plan.budget_s
    with server.running() as postgres:
        rows = dags.Run(postgres, plan, deadline=deadline).rows()
    report.emit("dags", rows, json_only=arguments.json)


def run_monitors(arguments: argparse.Namespace) -> None:
    venv.ensure()
    with server.running() as postgres:
        rows = monitors.Run(postgres, monitors.QUICK if arguments.quick else monitors.FULL).rows()
    report.emit("monitors", rows, json_only=arguments.json)


def run_pipelines(arguments: argparse.Namespace) -> None:
    with server.running() as postgres:
        rows = pipelines.Run(postgres, pipelines.QUICK if arguments.quick else pipelines.FULL).rows()
    report.emit("pipelines", rows, json_only=arguments.json)


def run_streams(arguments: argparse.Namespace) -> None:
    venv.ensure()
    with server.running() as postgres:
        rows = streams.Run(postgres, streams.QUICK if arguments.quick else streams.FULL).rows()
    report.emit("streams", rows, json_only=arguments.json)


if __name__ == "__main__":
    main()
