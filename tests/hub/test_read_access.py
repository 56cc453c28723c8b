"""Every endpoint of a hub is either a read, which the rules for readers restrict, or listed here as something else."""

from pathlib import Path

from tests.hub.client import make_dir, running
from tests.hub.disks import QuickDisk
from veen.hub import read_access
from veen.hub.config import ReadAccess

# What shows nothing of the log but its size: health, metrics, status and the description of the API.
PUBLIC = {("GET", path) for path in ("/healthz", "/readyz", "/metrics", "/tooling/status", "/tooling/openapi.json")}
# What adds something that the hub checks by itself, or compares what the client has with the log.
WRITES = {
    ("POST", path)
    for path in (
        "/v1/submit",
        "/tooling/submit-batch",
        "/tooling/authorize",
        "/tooling/equivocation",
        "/tooling/witness",
        "/tooling/receipt-check",
    )
}
# What needs the operator's token.
OPERATORS = {("GET", "/tooling/streams")} | {
    ("POST", f"/tooling/{name}")
    for name in (
        "streams",
        "revoke",
        "clock",
        "rotate-key",
        "release-keys",
        "limits",
        "retention/policy",
        "retention/hold",
        "retention/run",
    )
}


def test_every_route_is_a_read_or_known_not_to_be_one(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), disk=QuickDisk(), read_access=ReadAccess.SIGNED) as hub:
        routes = set(hub.service.app.routes)
        reads = {route for route in routes if read_access.is_read(*route)}
        assert routes - reads == PUBLIC | WRITES | OPERATORS
        assert reads | {("GET", read_access.SUBSCRIBE)} == read_access.READS
        assert read_access.is_read("GET", f"{read_access.ATTACHMENTS}{'0' * 64}")
        for method, path in routes | {("GET", read_access.SUBSCRIBE), ("GET", f"{read_access.ATTACHMENTS}{'0' * 64}")}:
            reply = hub.ask(method, path)
            refused = reply.status == 401 and "only signed requests" in reply.error().message
            assert refused == ((method, path) not in PUBLIC | WRITES | OPERATORS), (method, path, reply.body)
            if (method, path) in OPERATORS:
                assert reply.refusal()[:2] == (401, "E.UNAUTHORIZED"), (method, path)
