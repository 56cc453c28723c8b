"""Pages of other sites: what a browser can be made to send to a service is refused, and nothing can be read by them."""

import pytest

from tests.query.query_fixture import Office, asking
from tests.query.test_http import refusal
from veen.query.query_app import OriginCheck
from veen.query.query_errors import QueryFault

REFUSED = 403, "forbidden_host"
PATHS = ["/api/openapi.json", "/api/query/status/r-1", "/api/query/result/r-1", "/nothing"]
# What a page may have a browser post without asking first.
UNASKED = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/plain;application/json",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:37420", "0.0.0.0", "192.168.0.1", "a@localhost"]
)
def test_a_name_that_was_led_to_this_machine_is_refused(shared: Office, path: str, host: str) -> None:
    assert refusal(shared.get(path, headers={"host": host})) == REFUSED
    assert refusal(shared.get(path, None, headers={"host": host})) == REFUSED  # whether a token holds is not told


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:37420"])
def test_its_own_names_are_heard(shared: Office, host: str) -> None:
    assert shared.get("/api/openapi.json", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost.evil.example", "http://localhost@evil"]
)
def test_a_page_of_another_site_is_refused_and_nothing_is_recorded(shared: Office, origin: str) -> None:
    query = asking(query_id="q-of-a-page")
    assert refusal(shared.ask("POST", "/api/query/submit", json=query, headers={"origin": origin})) == REFUSED
    assert refusal(shared.get("/api/query/descriptor/q-of-a-page")) == (404, "query_not_found")


def test_a_page_of_this_machine_is_heard(shared: Office) -> None:
    assert shared.get("/api/openapi.json", headers={"origin": "http://localhost:3000"}).status_code == 200


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_a_picture_or_script_of_another_site_is_refused(shared: Office, site: str, status: int) -> None:
    """Those come without an origin; that is not how a program asks."""
    assert shared.get("/api/openapi.json", headers={"sec-fetch-site": site}).status_code == status


@pytest.mark.parametrize("form", UNASKED)
def test_what_needs_no_leave_of_ours_to_be_posted_is_no_query(shared: Office, form: str) -> None:
    answer = shared.ask("POST", "/api/query/submit", content=b"{}", headers={"content-type": form})
    assert refusal(answer) == (415, "unsupported_media_type")


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:3000"])
def test_no_other_origin_is_given_leave(shared: Office, origin: str) -> None:
    asks = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    for answer in (
        shared.ask("OPTIONS", "/api/query/submit", None, headers=asks),
        shared.ask("OPTIONS", "/api/query/submit", headers=asks),
        shared.get("/api/openapi.json", headers=asks),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_a_name_that_was_said_is_heard_and_others_are_not(own: Office) -> None:
    with own.serving(names=("Queries.Example",)):
        for host, status in (("queries.example", 200), ("queries.example:443", 200), ("evil.example", 403)):
            assert own.get("/api/openapi.json", headers={"host": host}).status_code == status


HEARD = [
    ("0.0.0.0", (), "anything.example", None, True),
    ("0.0.0.0", (), "anything.example", "https://anything.example", True),
    ("0.0.0.0", (), "anything.example:8443", "https://ANYTHING.example:8443", True),
    ("0.0.0.0", (), "anything.example", "https://evil.example", False),
    ("0.0.0.0", (), "anything.example:8443", "https://anything.example", False),
    ("0.0.0.0", (), "anything.example", "http://localhost", False),
    ("0.0.0.0", (), "anything.example", "null", False),
    ("0.0.0.0", (), "", "null", False),
    ("0.0.0.0", ("a.example",), "a.example", None, True),
    ("0.0.0.0", ("a.example",), "b.example", None, False),
    ("localhost", (), "b.example", None, False),
    ("::1", (), "[::1]:1", None, True),
    ("127.0.0.1", (), "", None, False),
]


@pytest.mark.parametrize(("listens", "names", "host", "origin", "heard"), HEARD)
def test_one_that_listens_to_the_network_goes_by_any_name_unless_told_its_own(
    listens: str, names: tuple[str, ...], host: str, origin: str | None, heard: bool
) -> None:
    headers = {b"host": host.encode()} | ({} if origin is None else {b"origin": origin.encode()})
    gate = OriginCheck(listens, names)
    if heard:
        gate.check(headers)
        return
    with pytest.raises(QueryFault) as caught:
        gate.check(headers)
    assert caught.value.code == "forbidden_host"
