"""Requests to other machines: what a stranger may choose never leads into this network."""

from __future__ import annotations

import ipaddress
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.support.private_network import in_private_network
from tests.support.receiver import receiver
from tidemill.core.errors import ConfigError
from tidemill.engine.outbound_http import (
    HttpAnswer,
    OutboundHttpError,
    RefusedAddressError,
    allowing_hosts,
    fetch,
    read_allowed_hosts,
    why_refused,
)

REFUSED = "was not asked: its address is"


def test_renamed_and_redirecting_hosts_lead_to_no_machine_inside() -> None:
    told = in_private_network(Path(__file__).with_name("outbound_program.py"))
    assert told["public"] == told["mixed"] == "8.8.8.8"
    assert told["before the rebinding"] == "8.8.8.8"
    assert told["questions"] == ["rebinding.test"]
    assert f"rebinding.test:80 {REFUSED} loopback" in told["after the rebinding"]
    assert told["kept"] == "8.8.8.8"
    assert f"kept.test:80 {REFUSED} loopback" in told["kept, closed and asked again"]
    assert told["redirects"].pop("http://other.test/") == "9.9.9.9"
    assert "is not an http or https address" in told["redirects"].pop("file:///etc/passwd")
    assert f"metadata.test:80 {REFUSED} link-local" in told["redirects"]["http://metadata.test/"]
    assert all(REFUSED in each for each in told["redirects"].values()), told["redirects"]
    assert told["secrets after a redirect"] == [None, "secret"]
    assert all(REFUSED in each for each in told["spellings"].values()), told["spellings"]
    assert told["refused before anything was sent"]
    assert "write no user name into the address" in told["a user name"]
    assert told["stated"] == "127.0.0.1"
    assert f"metadata.test:80 {REFUSED} link-local" in told["stated metadata by name"]
    assert f"localhost:80 {REFUSED} loopback" in told["stated, redirected"]
    allowed = {name.partition(" ")[2]: said for name, said in told.items() if name.startswith("allowed ")}
    assert {name for name, said in allowed.items() if said == "127.0.0.1"} == {
        "inside.test", "inside.test:80", "127.0.0.1", "127.0.0.0/8"
    }  # fmt: skip
    assert all(REFUSED in allowed[name] for name in ("inside.test:81", "10.0.0.0/8"))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:10.0.0.1", "::127.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", "2002:7f00:1::", "2001:0:1:1:0:0:80ff:fffe",
    ],
)  # fmt: skip
def test_an_address_of_no_public_machine_is_refused(address: str) -> None:
    assert why_refused(ipaddress.ip_address(address)) is not None


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_an_address_of_a_public_machine_is_not(address: str) -> None:
    assert why_refused(ipaddress.ip_address(address)) is None


@given(st.ip_addresses(v=4))
def test_an_address_is_refused_in_each_of_its_forms(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    mapped = ipaddress.IPv6Address((0xFFFF << 32) | number)
    nat64 = ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | number)
    six_to_four = ipaddress.IPv6Address((0x2002 << 112) | (number << 80))
    for form in (mapped, nat64, six_to_four):
        assert why_refused(form) == why_refused(address)


@pytest.mark.parametrize("entry", ["", "http://host", "host/path", "10.0.0.0/33", "u@host", "host:port", "*", "a b"])
def test_what_names_no_host_is_refused_with_its_text(entry: str) -> None:
    with pytest.raises(ConfigError, match="is not a host, host:port or network"):
        read_allowed_hosts([entry])


def test_a_refusal_says_how_to_allow_it() -> None:
    with receiver() as server:
        with pytest.raises(RefusedAddressError) as refused:
            fetch("GET", server.url, timeout=5)
        place = server.url.removeprefix("http://")
        assert f'App(allow_hosts=["{place}"]) or TIDEMILL_ALLOW_HOSTS={place}' in str(refused.value)
        assert not server.requests
        with allowing_hosts([place]):
            assert fetch("GET", f"{server.url}/tag/größe one?q=ü", timeout=5).status == 200
    assert server.requests[0].path == "/tag/gr%C3%B6%C3%9Fe%20one?q=%C3%BC"


@pytest.mark.parametrize("sent", [b"", b'{"whole": true}', b"half a sen"])
def test_an_answer_that_ends_too_early_is_an_error(sent: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n" + sent)

        answering = threading.Thread(target=answer)
        answering.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(OutboundHttpError, match=f"ended its answer after {len(sent)} bytes, too early"):
            fetch("GET", url, timeout=60, stated=True)
        answering.join()


@pytest.mark.parametrize("charset", ["idna", "punycode", "undefined", "hex", "no-such"])
def test_an_answer_in_an_encoding_that_cannot_be_read_is_shown_as_far_as_it_is_utf_8(charset: str) -> None:
    answer = HttpAnswer(
        410, "gone \N{EURO SIGN}".encode() + b"\xff", headers={"content-type": f"a/b; charset={charset}"}
    )
    assert answer.text() == "gone \N{EURO SIGN}\N{REPLACEMENT CHARACTER}"
