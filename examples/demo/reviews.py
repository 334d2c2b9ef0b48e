"""The stream: reviews and visits from two topics of the PostgreSQL log, each with its share, through two plans.

What cannot be read, and what fails at every attempt, becomes a dead letter; the console shows it and can replay it.
"""

import random

import msgspec

from tidemill.core.retry import retry
from tidemill.sources import LogSource
from tidemill.streams import Batch, Filtered, Plan, Stream, task

RUDE = ("rubbish", "awful", "never again")
KIND = ("lovely", "perfect", "thank you", "fast")


class Review(msgspec.Struct):
    """What a customer says of a thing."""

    thing: str
    stars: int
    text: str = ""


class Visit(msgspec.Struct):
    """A page that was viewed."""

    thing: str
    seconds: float


class Moderate(Plan, eligibility="moderate", timeout="5s"):
    """Holds rude reviews back until a person has read them."""

    @task
    async def has_words(self, ctx):
        if not ctx.value.text:
            raise Filtered("nothing was written")

    @task(after="has_words")
    async def hold_back(self, ctx):
        rude = [word for word in RUDE if word in ctx.value.text]
        if rude:
            ctx.publish("held_back", {"thing": ctx.value.thing, "because_of": rude})
        return bool(rude)


class Mood(Plan, eligibility="mood", timeout="5s"):
    """How happy customers are: a model would sit here, so it is asked for many at once."""

    @task
    async def stars(self, ctx):
        if not 1 <= ctx.value.stars <= 5:
            raise ValueError(f"{ctx.value.stars} stars for the {ctx.value.thing}: one to five are possible")
        if ctx.message.attempt == 1 and random.random() < 0.03:
            raise ConnectionError("the dictionary was away for a moment")

    @task(after="stars", batch=Batch(max_size=16, max_wait="10ms"))
    async def judge(self, items):
        return [ctx.value.stars + sum(word in ctx.value.text for word in KIND) for ctx in items]


class Interest(Plan, eligibility="interest"):
    """What is looked at for long."""

    @task
    async def long_enough(self, ctx):
        if ctx.value.seconds < 2:
            raise Filtered("only passing by")


reviews = Stream(
    "reviews",
    plans=[Moderate, Mood, Interest],
    engines=1,
    max_concurrency=64,
    retry=retry(3, backoff="500ms"),
    sources=[
        LogSource("reviews", weight=3, decoder=Review, eligibilities={"moderate", "mood"}),
        LogSource("visits", weight=1, max_qps=20, decoder=Visit, eligibilities={"interest"}),
    ],
)
