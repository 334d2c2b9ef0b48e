"""The messages of the streams: a post, with the text that it answers."""

from __future__ import annotations

import msgspec

LONGEST = 4000


class Analysis(msgspec.Struct, frozen=True):
    """What was found of a post before: a recovery message carries it, and the plans extend it."""

    scores: dict[str, float] | None = None
    """How likely the post is of each kind, as the judge said."""
    summary: str | None = None


class Post(msgspec.Struct, frozen=True):
    """A post as it is sent. `parent` is the text that a reply answers to; `likes` is its traction so far."""

    id: int
    author: int
    text: str
    at: float
    parent: str | None = None
    likes: int = 0
    media: tuple[str, ...] = ()
    analysis: Analysis | None = None
    """Of a recovery message: what was found before it failed."""

    @property
    def is_reply(self) -> bool:
        return self.parent is not None


class TooLongError(ValueError):
    """A post that no model can read, made to test the stream."""


def readable(post: Post) -> str:
    """Its text, for models."""
    if len(post.text) > LONGEST:
        raise TooLongError(f"post {post.id} has {len(post.text)} characters; {LONGEST} is the most")
    return post.text
