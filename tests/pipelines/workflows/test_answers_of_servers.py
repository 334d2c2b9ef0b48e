"""What servers answer as they do: in other encodings, in feeds with extensions, with secrets in other forms."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest

from tests.support.mail_server import mail_server
from tests.support.receiver import Request
from tests.support.workflow_runs import asked, keep_credentials, node, run
from tidemill.core.errors import ConfigError

PODCAST = b"""
<?xml version="1.0" encoding="iso-8859-1"?>
<rss xmlns:i="http://www.itunes.com/dtds/podcast-1.0.dtd" xmlns:atom="http://www.w3.org/2005/Atom"><channel>
<item><i:title>Short</i:title><title>Caf\xe9</title><link>http://x/1</link><atom:link href="http://x/feed"/>
<enclosure url="http://x/1.mp3" length="1" type="audio/mpeg"/></item></channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><entry><title>Ebb</title>
<link rel="enclosure" href="http://x/1.mp3"/><link href="http://x/1"/><author><name>Ada</name></author>
<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml">low <b>water</b></div></content></entry></feed>"""


@pytest.mark.parametrize(
    ("sent", "kind", "entry"),
    [
        (PODCAST, "application/rss+xml", {"title": "Café", "link": "http://x/1", "enclosure": "http://x/1.mp3"}),
        (ATOM.encode(), "application/atom+xml",
         {"title": "Ebb", "link": "http://x/1", "author": "Ada", "content": "low water"}),
        ("<rss><item><title>潮汐</title></item></rss>".encode("gbk"), "text/xml; charset=GBK", {"title": "潮汐"}),
        ('<?xml version="1.0" encoding="gbk"?><rss><item><title>潮汐</title></item></rss>'.encode("gbk"), "text/xml",
         {"title": "潮汐"}),
        ("\ufeff<rss><item><title>Flut</title></item></rss>".encode(), "text/xml", {"title": "Flut"}),
    ],
)  # fmt: skip
def test_an_entry_of_a_feed_has_its_own_fields_in_their_encoding(sent: bytes, kind: str, entry: dict[str, str]) -> None:
    with asked((200, sent, {"Content-Type": kind})) as (url, _):
        assert run(node("feed", "rss", url=url))["feed"] == [entry]


@pytest.mark.parametrize(
    ("sent", "kind", "body"),
    [
        ("Ebbe für Köln\n".encode("latin-1"), "text/plain; charset=ISO-8859-1", "Ebbe für Köln\n"),
        (b" as it is \n", "text/plain", " as it is \n"),
        ('\ufeff{"n": 1}'.encode(), "application/json", {"n": 1}),
        ("für".encode(), "text/plain; charset=nothing-known", "für"),
    ],
)
def test_a_body_is_what_the_server_sent_in_its_encoding(sent: bytes, kind: str, body: Any) -> None:
    with asked((200, sent, {"Content-Type": kind})) as (url, _):
        assert run(node("get", "http", url=url))["get"][0]["body"] == body


@pytest.mark.parametrize("secret", ["Tk-<Sec\"ret>&'é", "plain-SECRET", "two\nlines"])
def test_a_secret_is_masked_in_every_case_and_in_html(secret: str) -> None:
    def echo(request: Request) -> tuple[int, bytes]:
        said = json.loads(request.body)["p"]
        return 500, "".join([html.escape(said), html.escape(said, quote=False), said.lower(), repr(said)]).encode()

    keep_credentials(site={"token": secret})
    with asked(echo) as (url, _):
        fields = [{"name": "p", "value": "{{$credentials.site.token}}"}]
        made = run(node("a", "http", url=url, method="POST", body_fields=fields))["a"][0]
    assert re.fullmatch(r"(\*{10}|'|\")+", made["body"]), made["body"]


def test_the_name_of_a_host_shows_no_secret() -> None:
    keep_credentials(site={"token": "Plain-SECRET"})
    made = run(node("a", "http", url="http://{{$credentials.site.token}}.invalid/"))["a"][0]
    assert made["error"].startswith("http://**********.invalid does not answer")


def test_an_expression_may_write_the_method_of_a_request_in_lower_case() -> None:
    with asked() as (url, requests):
        run(node("a", "http", url=url, method="{{$.payload}}"), payload="post")
    assert [each.method for each in requests] == ["POST"]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"method": "{{$.payload}}"}, "field 'method': 'x\\ny' is not one of GET, POST"),
        ({"body_mode": "{{$.payload}}"}, "field 'body_mode': 'x\\ny' is not one of none, json, fields"),
        ({"headers": [{"name": "X-Id", "value": "{{$.payload}}"}]}, "field 'headers': X-Id has a line break"),
    ],
)
def test_a_request_that_a_value_would_break_is_not_sent(field: dict[str, Any], message: str) -> None:
    with asked() as (url, requests):
        with pytest.raises(ConfigError, match=re.escape(message)):
            run(node("a", "http", url=url, **field), payload="x\ny")
        assert not requests


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("gone@example.org", "127.0.0.1 did not accept the mail: 550 no such user"),
        ("ada@", "the credential's sender and to are addresses: ada@"),
    ],
)
def test_a_mail_that_is_not_accepted_says_why(sender: str, message: str) -> None:
    with mail_server() as (port, mails):
        keep_credentials(
            notification={"server": "127.0.0.1", "port": str(port), "to": "a@example.org", "sender": sender}
        )
        with pytest.raises(ConfigError, match=re.escape(message)):
            run(node("n", "notification", title="t", message="m"))
    assert not mails
