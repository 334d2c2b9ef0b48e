"""Logs as people and programs write them, and the posts that are made of them without a model."""

from __future__ import annotations

import pytest
import yaml

from apps.autoblog.reading import decode_text, read_log
from apps.autoblog.site import read_post, write_front_matter
from apps.autoblog.writing import OFFLINE, compose, summarise

TRACEBACK = """2026-03-02T09:01:00Z ERROR pay: timed out (order 1182)
Traceback (most recent call last):
  File "/srv/pay.py", line 88, in charge
    raise TimeoutError("payment provider")
TimeoutError: payment provider
Afterwards all was well."""
JAVA = "10:00:01 ERROR no route\njava.net.NoRouteToHostException: no route\n\tat Pay.charge(Pay.java:88)\n"


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("Mar  4 09:14:09 quay sshd[884]: Failed password for root", "INFO Failed password for root"),
        ("Mar  4 07:00:00 quay kernel: [12345.678] usb 1-1: new device", "INFO usb 1-1: new device"),
        ('{"time": "2026-03-05T08:00:00Z", "level": "warn", "msg": "disk full", "n": 3}', "WARN disk full"),
        ('{"severity": "CRITICAL", "message": "no disk"}', "ERROR no disk"),
        ('10.0.0.1 - - [03/Mar/2026:10:00:00 +0000] "GET /berths?x=1 HTTP/1.1" 502 17', "ERROR GET /berths: 502"),
        ('10.0.0.1 - ada [03/Mar/2026:10:00:00 +0000] "POST /b HTTP/1.1" 201 9 "-" "curl"', "INFO POST /b: 201"),
        ("2026-03-02 08:14:11,123 - shop.pay - WARNING - slow query", "WARN slow query"),
        ("2026-03-02T06:00:01Z INFO  booking: started", "INFO booking: started"),
        ("[2026-03-02 06:00:01] [ERR] no space left", "ERROR no space left"),
        ("06:04 DEBUG cache hit", ""),
        ("- Call with Ada", "Call with Ada"),
        ("[ ] Order fenders", "TODO Order fenders"),
        ("{not json}", "{not json}"),
        ("Lunch at 12:30 with Mia.", "Lunch at 12:30 with Mia."),
    ],
)
def test_a_line_is_read_in_its_form(line: str, read: str) -> None:
    assert read_log("host.log", line) == read


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b"\xef\xbb\xbfAll went well.", "All went well."),
        ("Grüße vom Kai.".encode("latin-1"), "Gr\ufffd\ufffde vom Kai."),
        ("Grüße vom Kai.".encode("utf-16"), "Grüße vom Kai."),
        (b"\x7fELF\0\0\x01", ""),
        (b"x" * 3_000_000, "x" * 999 + "…"),
    ],
)
def test_a_file_in_another_encoding_or_of_one_long_line_keeps_no_day_from_its_post(data: bytes, read: str) -> None:
    assert read_log("host.log", decode_text(data)) == read


@pytest.mark.parametrize(
    "text", ["Merge: all tests", "# heading", "- [ ] open", '"quoted"', "it's #1", "Yes", "a: b #c", "ends:", "x"]
)
def test_front_matter_is_yaml_for_every_text(text: str) -> None:
    post = write_front_matter("2026-03-02", text, f"{text}.", "Body.")
    assert yaml.safe_load(post.split("---\n")[1]) | {"date": ""} == {"title": text, "summary": f"{text}.", "date": ""}
    read = read_post("2026-03-02", post)
    assert (read.title, read.summary) == (text, f"{text}.")


def test_of_a_traceback_only_its_last_line_is_left() -> None:
    assert read_log("pay.log", TRACEBACK).splitlines() == [
        "ERROR pay: timed out (order 1182)", "ERROR TimeoutError: payment provider", "Afterwards all was well.",
    ]  # fmt: skip
    assert "Pay.java" not in read_log("pay.log", JAVA)


def test_entries_of_a_list_to_do_are_open_or_done() -> None:
    notes = "# Monday\n\n- [x] Reply to **Jonas**\n- [ ] Order fenders\n\n```\nsudo reboot\n```\n"
    assert read_log("notes.md", notes).splitlines() == ["Reply to Jonas", "TODO Order fenders"]


async def test_a_post_begins_with_what_people_wrote_and_names_errors_as_such() -> None:
    told = (
        "Lunch with Mia. She wants to open in April.\n\n- [ ] Order fenders\n- Moved the form to the new server; "
        + ("it took most of the morning because certificates were missing.\n")
    )
    sent = "\n".join(f'10.0.0.{n} - - [03/Mar/2026:10:00:00 +0000] "GET /b/{n} HTTP/1.1" 200 1' for n in range(90))
    logs = [read_log("a.log", sent), read_log("pay.log", TRACEBACK), read_log("notes.md", told)]
    post = read_post("2026-03-03", await compose("2026-03-03", await summarise("2026-03-03", logs, OFFLINE), OFFLINE))
    assert post.title == "Afterwards all was well"
    assert post.summary == "Lunch with Mia. She wants to open in April."
    body = post.body.split("\n\n")
    assert body[0] == "Lunch with Mia. She wants to open in April."
    assert body[body.index("## What went wrong") + 1].splitlines() == [
        "- pay: timed out (order 1182).", "- TimeoutError: payment provider.",
    ]  # fmt: skip
    assert body[body.index("## What is open") + 1] == "- Order fenders."
    assert body[body.index("## What was done") + 1].splitlines() == [
        f"- {told.splitlines()[-1][2:]}", "- GET /b/0: 200 (and 89 more like it).",
    ]  # fmt: skip
    assert body[-1].endswith("from 96 lines.*")


async def test_a_long_sentence_is_no_title_as_a_whole() -> None:
    for sentence, title in (
        ("Moved the form to the new server; " + "certificates " * 8, "Moved the form to the new server"),
        ("Every " + "word " * 30, f"{('Every ' + 'word ' * 16).strip()} …"),
    ):
        text = await compose("2026-03-03", f"2026-03-03, from 1 line of 1 log.\n{sentence.strip()}.", OFFLINE)
        post = read_post("2026-03-03", text)
        assert post.title == title
        assert sentence.strip() in post.body
