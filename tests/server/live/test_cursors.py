"""Points in the log of changes, topics and cursors: what they mean, and that nonsense is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tidemill.core.errors import ConfigError
from tidemill.core.web.address import is_loopback
from tidemill.ops.operator.cursor import read_cursor, write_cursor
from tidemill.server.live.hub import MOST_RUNS, ChangeSet, Topics, merge_changes, write_event
from tidemill.server.settings import ServerSettings
from tidemill.store.change_log import Change, LogSnapshot


def test_a_snapshot_has_what_was_committed_and_not_what_was_open() -> None:
    seen = LogSnapshot.read("10:20:12,15")
    assert seen.has(9)
    assert seen.has(11)
    assert not seen.has(12)
    assert not seen.has(20)
    assert seen.text == "10:20:12,15"


@pytest.mark.parametrize("text", ["", "1", "1:2", "a:b:c", "5:3:", "0:1:", "1:5:9", "1:5:0", "1:99999999999999999999:"])
def test_what_is_not_a_snapshot_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a point"):
        LogSnapshot.read(text)


def test_many_changes_become_one_piece_of_news() -> None:
    changes = [Change(1, "queue", ("b", "a")), Change(2, "queue", ("a",)), Change(3, "run", ("7",)), Change(3, "audit")]
    assert merge_changes(changes) == ChangeSet(["a", "b"], [7], ["audit"])


def test_more_runs_than_can_be_named_are_told_as_all() -> None:
    news = merge_changes([Change(1, "run", tuple(map(str, range(MOST_RUNS + 1))))])
    assert news.all_runs
    assert news.runs == []


def test_topics_let_through_what_was_asked_for() -> None:
    news = ChangeSet(["mail", "gpu"], [1, 2], ["workers", "audit"])
    assert Topics.read(()).of(news) is news
    assert Topics.read(["queue:mail", "run:2", "audit"]).of(news) == ChangeSet(["mail"], [2], ["audit"])
    assert Topics.read(["runs"]).of(news) == ChangeSet([], [1, 2], [])
    assert Topics.read(["hosts"]).of(news) is None
    assert Topics.read(["run:9"]).of(ChangeSet(all_runs=True)) == ChangeSet(all_runs=True)


@pytest.mark.parametrize("text", ["run:x", "queue:", "", "thing:5"])
def test_a_topic_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a topic"):
        Topics.read([text])


def test_an_event_is_written_on_lines_of_its_own() -> None:
    assert write_event(ChangeSet(["a\nb"]), "e.1:1:") == b'id: e.1:1:\nevent: change\ndata: {"queues":["a\\nb"]}\n\n'
    assert write_event(None, "") == b"event: reset\ndata: {}\n\n"


@given(st.integers(1, 2**63 - 1))
def test_a_cursor_is_read_back(number: int) -> None:
    assert read_cursor(write_cursor(number)) == number


@given(st.text(max_size=20))
def test_any_other_text_is_a_clear_error_or_a_number(text: str) -> None:
    try:
        found = read_cursor(text)
    except ConfigError:
        found = 1
    assert found is not None
    assert 0 < found < 2**63


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *((host, True) for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9")),
        *((host, False) for host in ("0.0.0.0", "10.0.0.5", "::", "", "example.org")),
    ],
)
def test_only_this_machine_is_loopback(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def test_other_machines_are_served_only_with_tls_or_by_an_explicit_wish() -> None:
    with pytest.raises(ConfigError, match="--tls-cert"):
        ServerSettings(host="0.0.0.0").validate()
    for settings in (
        ServerSettings(host="0.0.0.0", plain_http=True),
        ServerSettings(host="0.0.0.0", behind_proxy=True, proxies=("10.0.0.4",)),
        ServerSettings(host="0.0.0.0", tls_cert="cert.pem", tls_key="key.pem"),
    ):
        assert settings.validate().asks_login
    with pytest.raises(ConfigError, match="both"):
        ServerSettings(tls_cert="cert.pem").validate()
