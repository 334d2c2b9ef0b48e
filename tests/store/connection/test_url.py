"""Database URLs as libpq reads them."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ConfigError
from tidemill.engine.settings import hide_password
from tidemill.store.connection.url import (
    check_database_url,
    database_of,
    hosts_of,
    place_of,
    to_any,
    to_primary,
    to_writable,
    with_database,
)

URLS = {
    "postgresql://u:p@a:5433/shop": ([("a", "5433")], "a:5433/shop"),
    "postgresql://u:p@a/shop": ([("a", "5432")], "a:5432/shop"),
    "postgresql://u:p@a:1,b:2/shop": ([("a", "1"), ("b", "2")], "a:1,b:2/shop"),
    "postgresql://a,b/shop?port=1,2": ([("a", "1"), ("b", "2")], "a:1,b:2/shop"),
    "postgresql:///shop?host=a,b&port=5433": ([("a", "5433"), ("b", "5433")], "a:5433,b:5433/shop"),
    "postgresql:///shop?host=/run/pg": ([("/run/pg", "5432")], "/run/pg:5432/shop"),
    "postgresql://[::1]:5434/shop": ([("::1", "5434")], "::1:5434/shop"),
    "postgresql://%2Frun%2Fpg/shop": ([("/run/pg", "5432")], "/run/pg:5432/shop"),
    "postgresql:///?service=shop": ([], "service shop"),
    "postgresql:///shop": ([], "localhost:5432/shop"),
}


@pytest.mark.parametrize("url", URLS)
def test_hosts_and_place_of_a_url(url: str) -> None:
    check_database_url(url)
    assert (hosts_of(url), place_of(url)) == URLS[url]


def test_of_several_hosts_the_primary_is_wanted_unless_the_url_says_otherwise() -> None:
    assert to_primary("postgresql://a,b/shop") == "postgresql://a,b/shop?target_session_attrs=primary"
    assert to_primary("postgresql://a,b/shop?sslmode=require").endswith("sslmode=require&target_session_attrs=primary")
    for unchanged in ("postgresql://a/shop", "postgresql://a,b/shop?target_session_attrs=any"):
        assert to_primary(unchanged) == unchanged


def test_connections_that_write_want_a_server_that_can_unless_the_url_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert to_writable("postgresql://a/shop") == "postgresql://a/shop?target_session_attrs=read-write"
    assert to_any("postgresql://a/shop?x=1") == "postgresql://a/shop?x=1&target_session_attrs=any"
    for unchanged in ("postgresql://a/shop?target_session_attrs=any", "postgresql:///?service=shop"):
        assert to_writable(unchanged) == unchanged
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    assert to_writable("postgresql://a/shop") == "postgresql://a/shop"


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("postgresql://u:p@a:1,b:2/shop?x=1", "postgresql://u:p@a:1,b:2/other?x=1"),
        ("postgresql:///shop?host=/run/pg", "postgresql:///other?host=/run/pg"),
        ("postgresql://a", "postgresql://a/other"),
    ],
)
def test_the_url_of_another_database_of_a_server(url: str, other: str) -> None:
    assert with_database(url, "other") == other
    assert database_of(other) == "other"


@pytest.mark.parametrize("url", ["mysql://a/shop", "postgresql://a:x/shop", "postgresql://a:1,b:70000/shop"])
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="database URL"):
        check_database_url(url)


def test_the_password_of_a_url_with_several_hosts_is_hidden() -> None:
    assert hide_password("postgresql://u:secret@a:1,b:2/shop") == "postgresql://u:***@a:1,b:2/shop"
