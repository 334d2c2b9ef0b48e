"""A trigger shows the code of its conditions, and of each only its own."""

from __future__ import annotations

from tidemill.monitors import sustained


def is_hot(state, now):
    return state.celsius > 80


# fmt: off
HOT = sustained("hot", when=lambda s, now: s.hot_since is not None, since=lambda s: s.hot_since)
# fmt: on
LONG = sustained(
    "long",
    when=lambda s, now: (
        s.hot_since is not None  #
        and now - s.hot_since > 60
    ),
    since=lambda s: s.hot_since,
)
PLAIN = sustained("plain", when=is_hot, since=eval("lambda s: s.began"))


def test_a_lambda_is_shown_without_the_call_that_it_stands_in() -> None:
    assert HOT.rule()["when"] == "lambda s, now: s.hot_since is not None"
    assert HOT.rule()["since"] == "lambda s: s.hot_since"
    assert LONG.rule()["when"].startswith("lambda s, now: ( s.hot_since is not None")
    assert LONG.rule()["when"].endswith("now - s.hot_since > 60 )")


def test_a_function_is_shown_whole_and_code_without_a_file_by_its_name() -> None:
    assert PLAIN.rule()["when"] == "def is_hot(state, now): return state.celsius > 80"
    assert PLAIN.rule()["since"] == "<lambda>"
