"""The plans: spam, reply ranking, banger screen, safety, embeddings. Each writes its result to a table and a topic.

Models are loaded once per engine and called with many posts at once, whichever plans they come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import msgspec
import numpy as np

from apps.content.classifiers import Classifiers
from apps.content.embedding import SentenceModel, StaticModel
from apps.content.findings import read_finding
from apps.content.judging import Judge, judge
from apps.content.posts import readable
from apps.content.summary import Summariser, summariser
from tidemill.streams import Batched, Context, Filtered, Plan, task

RESULTS = "content_results"
TRACTION = 5
EXCERPT = 160

#: A result is what a plan last found for a post: a repetition of the message changes nothing.
STORE = """
INSERT INTO content.result (post, plan, source, excerpt, found, flagged) VALUES ($1, $2, $3, $4, $5::text::jsonb, $6)
ON CONFLICT (post, plan) DO UPDATE SET source = excluded.source, excerpt = excluded.excerpt, found = excluded.found,
    flagged = excluded.flagged, at = excluded.at, n = excluded.n
"""


class Models:
    """What the plans of an engine share."""

    def __init__(self) -> None:
        self.static = StaticModel()
        self.embed = Batched(self._embed, max_size=32, max_wait="5ms")
        self.summaries: Summariser = summariser(self.static)
        self.judge: Judge = judge(self.embed, Classifiers.load())

    def _embed(self, texts: list[str]) -> list[np.ndarray]:
        return list(self.static.encode(texts))


models = cache(Models)
sentences = cache(SentenceModel)


class ContentPlan(Plan):
    """What all of them do: read the post, and keep what was found."""

    async def start(self) -> None:
        models()

    @task
    async def read(self, ctx: Context) -> str:
        """A post that cannot be decoded fails here, before any model gets it."""
        return readable(ctx.value)

    async def vector(self, ctx: Context) -> np.ndarray:
        """The post's quick embedding."""
        return await once(ctx, "vector", lambda: models().embed(ctx.value.text))

    async def scores(self, ctx: Context) -> dict[str, float]:
        """How likely the post is of each kind: as it was found before, or as the judge says."""
        prior = ctx.value.analysis
        if prior is not None and prior.scores is not None:
            return prior.scores
        return await once(ctx, "scores", lambda: models().judge.score(ctx.value.text))

    def keep(self, ctx: Context, found: dict[str, Any]) -> dict[str, Any]:
        """Store a result with the message's completion."""
        text, flagged = msgspec.json.encode(found).decode(), read_finding(self.name, found).flagged
        ctx.execute(STORE, ctx.value.id, self.name, ctx.message.source, ctx.value.text[:EXCERPT], text, flagged)
        ctx.publish(RESULTS, {"post": ctx.value.id, "plan": self.name, **found}, key=str(ctx.value.id))
        return found


class SpamComment(ContentPlan, eligibility="spam_comment", timeout="30s"):
    """Whether a reply is spam."""

    @task(after="read")
    async def only_replies(self, ctx: Context) -> None:
        if not ctx.value.is_reply:
            raise Filtered("not a reply")

    @task(after="only_replies", breaker="llm")
    async def judge(self, ctx: Context) -> dict[str, Any]:
        scores = await self.scores(ctx)
        spam = max(scores["spam"], scores["scam"])
        return self.keep(ctx, {"spam": spam > 0.5, "score": spam})


class ReplyRanking(ContentPlan, eligibility="reply_ranking", timeout="30s"):
    """How high a reply is ranked: close to what it answers, informative, and no spam."""

    @task(after="read")
    async def only_replies(self, ctx: Context) -> None:
        if not ctx.value.is_reply:
            raise Filtered("not a reply")

    @task(after="only_replies")
    async def nearness(self, ctx: Context) -> float:
        parent = await models().embed(ctx.value.parent)
        return float((await self.vector(ctx)) @ parent)

    @task(after="only_replies", breaker="llm")
    async def quality(self, ctx: Context) -> float:
        scores = await self.scores(ctx)
        return scores["thoughtful"] - scores["shallow"] - max(scores["spam"], scores["abuse"])

    @task(after=("nearness", "quality"))
    async def rank(self, ctx: Context) -> dict[str, Any]:
        near, quality = ctx.results["nearness"], ctx.results["quality"]
        return self.keep(
            ctx,
            {"rank": round(0.4 * near + 0.6 * quality, 4), "nearness": round(near, 4), "quality": round(quality, 4)},
        )


class BangerScreen(ContentPlan, eligibility="banger_initial_screen", timeout="30s"):
    """Whether a post may become popular."""

    @task(after="read")
    async def has_traction(self, ctx: Context) -> None:
        if ctx.value.likes < TRACTION:
            raise Filtered("too little traction")

    @task(after="has_traction", breaker="llm")
    async def screen(self, ctx: Context) -> dict[str, Any]:
        scores = await self.scores(ctx)
        score = scores["banger"] * (1 - max(scores["spam"], scores["abuse"], scores["scam"]))
        return self.keep(ctx, {"banger": score > 0.5, "score": round(score, 4)})


class PostSafety(ContentPlan, eligibility="post_safety", timeout="30s"):
    """Whether a popular post is safe to show."""

    @task(after="read", breaker="llm")
    async def judge(self, ctx: Context) -> dict[str, Any]:
        scores = await self.scores(ctx)
        worst = max(("abuse", "violence", "adult", "scam"), key=lambda label: scores[label])
        return self.keep(ctx, {"safe": scores[worst] <= 0.5, "worst": worst, "score": scores[worst]})


class SafetyPtos(ContentPlan, eligibility="safety_ptos", timeout="30s"):
    """Which terms of service a post may break."""

    @task(after="read", breaker="llm")
    async def label(self, ctx: Context) -> dict[str, Any]:
        scores = await self.scores(ctx)
        labels = [label for label in ("abuse", "violence", "adult", "scam", "spam") if scores[label] > 0.5]
        return self.keep(ctx, {"labels": labels, "scores": scores})


class EmbeddingWithSummary(ContentPlan, eligibility="post_embedding_with_summary", timeout="30s"):
    """The post's embedding, of its words and of its summary together."""

    @task(after="read", breaker="llm", max_concurrency=16)
    def summarise(self, ctx: Context) -> str:
        prior = ctx.value.analysis
        if prior is not None and prior.summary is not None:
            return prior.summary
        return models().summaries.summarise(ctx.results["read"])

    @task(after="summarise")
    async def embed(self, ctx: Context) -> dict[str, Any]:
        summary = await models().embed(ctx.results["summarise"])
        both = (await self.vector(ctx)) + summary
        both /= max(float(np.linalg.norm(both)), 1e-9)
        return self.keep(ctx, {"summary": ctx.results["summarise"], "vector": _short(both)})


class EmbeddingWithSummaryForReply(EmbeddingWithSummary, eligibility="post_embedding_with_summary_for_reply"):
    """The same, stored separately for the ranking of replies."""


class EmbeddingV5(ContentPlan, eligibility="mm_emb_v5", timeout="30s"):
    """The newer embedding: the whole model, many posts at a time."""

    async def start(self) -> None:
        await super().start()
        sentences()
        self._encode = Batched(lambda texts: list(sentences().encode(texts)), max_size=16, max_wait="10ms")

    @task(after="read")
    async def embed(self, ctx: Context) -> dict[str, Any]:
        return self.keep(ctx, {"vector": _short(await self._encode(ctx.results["read"]))})


class EmbeddingV5ForReply(EmbeddingV5, eligibility="mm_emb_v5_for_reply"):
    """The same, stored separately for the ranking of replies."""


async def once(ctx: Context, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
    """Compute a value once for all plans of a message; cancelling one plan does not cancel it for the others."""
    making = ctx.shared.get(name)
    if making is None:
        making = ctx.shared[name] = asyncio.ensure_future(make())
    return await asyncio.shield(making)


def _short(vector: np.ndarray) -> list[float]:
    return [round(float(each), 4) for each in vector]
