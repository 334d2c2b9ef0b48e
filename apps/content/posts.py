"""The messages of the streams: a post, with the text that it answers."""

from __future__ import annotations

import msgspec

LONGEST = 4000


class Post(msgspec.Struct, frozen=True):
    """A post as it is sent. `parent` is the text that a reply answers to; `likes` is its traction so far."""

    id: int
    author: int
    text: str
    at: float
    parent: str | None = None
    likes: int = 0
    media: tuple[str, ...] = ()

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
