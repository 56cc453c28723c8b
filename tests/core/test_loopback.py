"""Names of this machine, and names that only look like one."""

import pytest

from plumbing.http.peer_address import authority_of, host_of, is_local_request, is_loopback

OWN = ["127.0.0.1", "127.8.9.1", "::1", "localhost"]
OTHERS = ["", "0.0.0.0", "::", "10.0.0.1", "localhost.", "localhost.evil.example", "127.0.0.1.evil.example", "127.1"]


@pytest.mark.parametrize("host", OWN)
def test_an_address_of_this_machine_is_its_own(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", OTHERS)
def test_another_address_or_name_is_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("authority", "host"),
    [("LocalHost", "localhost"), ("127.0.0.1:80", "127.0.0.1"), ("[::1]", "::1"), ("[::1]:37420", "::1")],
)
def test_a_port_and_brackets_are_no_part_of_a_host(authority: str, host: str) -> None:
    assert host_of(authority) == host


@pytest.mark.parametrize(
    "authority",
    [
        "",
        ":80",
        "::1",
        "localhost:",
        "localhost:x",
        "localhost:123456",
        "evil@localhost",
        "localhost/",
        "a b",
        "[x]",
        "\\a",
    ],
)
def test_what_is_not_host_and_port_has_no_host(authority: str) -> None:
    assert host_of(authority) == ""


@pytest.mark.parametrize("origin", ["null", "", "//localhost", "file://", "localhost", "ftp://localhost"])
def test_an_origin_that_no_page_over_http_has_is_nowhere(origin: str) -> None:
    assert authority_of(origin) == ""
    assert not is_local_request("localhost", origin)


def test_a_request_is_local_if_it_and_its_page_are_of_this_machine() -> None:
    assert is_local_request("127.0.0.1:37420", None)
    assert is_local_request("[::1]:37420", "http://LOCALHOST:3000")
    assert is_local_request("queries.example", "https://queries.example:8443", {"queries.example"})
    assert not is_local_request("queries.example", None)
    assert not is_local_request("queries.example", "https://evil.example", {"queries.example"})
    assert not is_local_request("evil.example", "http://localhost")
    assert not is_local_request("localhost", "http://localhost, http://evil.example")
    assert not is_local_request("localhost", "http://localhost@evil.example")
