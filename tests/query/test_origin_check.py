"""Requests that a page of another site can make a browser send are rejected, and it can read no response."""

import pytest

from tests.query.query_fixture import QuerySetup, asking
from tests.query.test_http import refusal
from veen.query.query_app import OriginCheck
from veen.query.query_errors import QueryFault

REFUSED = 403, "forbidden_host"
PATHS = ["/api/openapi.json", "/api/query/status/r-1", "/api/query/result/r-1", "/nothing"]
# Content types that a page may post without a preflight.
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
def test_a_host_name_that_resolves_to_this_machine_is_rejected(shared: QuerySetup, path: str, host: str) -> None:
    assert refusal(shared.get(path, headers={"host": host})) == REFUSED
    assert (
        refusal(shared.get(path, None, headers={"host": host})) == REFUSED
    )  # the answer does not reveal whether a token is valid


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:37420"])
def test_its_own_names_are_accepted(shared: QuerySetup, host: str) -> None:
    assert shared.get("/api/openapi.json", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost.evil.example", "http://localhost@evil"]
)
def test_a_page_of_another_site_is_rejected_and_nothing_is_recorded(shared: QuerySetup, origin: str) -> None:
    query = asking(query_id="q-of-a-page")
    assert refusal(shared.ask("POST", "/api/query/submit", json=query, headers={"origin": origin})) == REFUSED
    assert refusal(shared.get("/api/query/descriptor/q-of-a-page")) == (404, "query_not_found")


def test_a_page_of_this_machine_is_accepted(shared: QuerySetup) -> None:
    assert shared.get("/api/openapi.json", headers={"origin": "http://localhost:3000"}).status_code == 200


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_a_cross_site_image_or_script_request_is_rejected(shared: QuerySetup, site: str, status: int) -> None:
    """Browsers send these without Origin, but with Sec-Fetch-Site, which programs do not send."""
    assert shared.get("/api/openapi.json", headers={"sec-fetch-site": site}).status_code == status


@pytest.mark.parametrize("form", UNASKED)
def test_content_types_without_preflight_are_rejected(shared: QuerySetup, form: str) -> None:
    answer = shared.ask("POST", "/api/query/submit", content=b"{}", headers={"content-type": form})
    assert refusal(answer) == (415, "unsupported_media_type")


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:3000"])
def test_no_response_allows_another_origin(shared: QuerySetup, origin: str) -> None:
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


def test_a_configured_name_is_accepted_and_others_are_not(own: QuerySetup) -> None:
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
def test_a_network_service_accepts_any_name_unless_names_are_configured(
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
