"""What each row should reach: the ratio of ours to the peer's, above 1 where ours is better.

A row that is not named has no goal; one whose peer is a limit is to reach it.
"""

GOALS = {
    ("drain", "raw"): 0.9,
    ("drain", "pgqueuer"): 2.5,
    ("enqueue_one", "pgqueuer"): 1.2,
    ("start_p50", "pgqueuer"): 1 / 0.75,
    ("start_p99", "pgqueuer"): 1 / 0.9,
    ("fair_drain_10", "drain"): 0.9,
    ("fair_drain_10k", "drain"): 0.85,
    ("batch_1m", "drain"): 0.8,
    ("enqueue_sql", "enqueue_one"): 0.9,
    ("durable_steps", "raw"): 0.2,
    ("durable_steps", "absurd"): 12.0,
    ("durable_steps", "dbos"): 80.0,
    ("step_p50", "raw"): 1 / 1.7,
    ("nodes_chain", "jobs"): 0.85,
    ("nodes_wide", "jobs"): 0.7,
    ("nodes_100x100", "jobs"): 0.8,
    ("noop_check", "ninja"): 1 / 2.5,
    ("ingest_copy", "COPY"): 0.7,
    ("tasks", "ray"): 0.7,
    ("kafka_end_to_end", "quixstreams"): 1.5,
    ("kafka_end_to_end", "confluent-kafka"): 0.3,
}

#: The peers that are limits: ours is to be as good.
LIMITS = ("limit", "wanted", "goal")


def goal_of(name: str, peer: str) -> float | None:
    """The ratio that a row is to reach; None if it has no goal."""
    return 1.0 if peer in LIMITS else GOALS.get((name, peer))
