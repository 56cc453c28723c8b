"""Attachments over real HTTP: permission, integrity and limits."""

import errno
import http.client
import os
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from plumbing.http import Request, Response
from tests.hub.client import ISSUER, PATIENCE_S, START, TOKEN, Clock, Hub, Reply, Writer, make_dir, running, until
from tests.hub.disks import QuickDisk
from veen.core import Limits, SigningKey, attachment, cap_token, naming
from veen.core.attachment import UploadProof
from veen.core.envelopes import AuthorizeResponse
from veen.core.hashing import h
from veen.core.hpke import TAG_BYTES
from veen.core.limits import MAX_UPLOAD_SKEW_SEC
from veen.hub.admission_rules import Admission
from veen.hub.uploads import BATCH_BYTES, AttachmentUpload
from veen.storage import fsck
from veen.storage.attachment_store import AttachmentStore
from veen.storage.paths import Folders

MIB = 1 << 20
LIMITS = Limits(max_attachment_bytes=8 * MIB)
MOST = LIMITS.max_attachment_bytes + TAG_BYTES
SEALED = b"sealed bytes"


def path_of(sealed: bytes) -> str:
    return f"/tooling/attachments/{h(sealed).hex()}"


def code_of(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.error().code


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(make_dir(tmp_path, limits=LIMITS), disk=QuickDisk()) as found:
        yield found


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Hub]:
    """A hub that requires capabilities."""
    with running(make_dir(tmp_path, limits=LIMITS), disk=QuickDisk(), admission=Admission.CAPABILITY) as found:
        yield found


def proof(hub: Hub, writer: Writer, sealed: bytes, **given: Any) -> UploadProof:
    """An upload proof of a writer with a capability; any part can be overridden."""
    assert writer.auth_ref is not None
    wanted = {
        "hub_id": hub.service.rules.hub_id,
        "coid": h(sealed),
        "auth_ref": writer.auth_ref,
        "size": len(sealed),
        "made_at": int(hub.clock()),
        **given,
    }
    return attachment.sign_upload(writer.key, **wanted)


def put(hub: Hub, sealed: bytes, made: UploadProof | None = None, **headers: str) -> Reply:
    if made:
        headers["authorization"] = made.header()
    return hub.ask("PUT", path_of(sealed), sealed, **headers)


# Storing.


def test_an_attachment_is_kept_under_its_hash(hub: Hub) -> None:
    assert code_of(hub.get(path_of(SEALED))) == (404, "E.NOT_FOUND")
    assert put(hub, SEALED).status == 201
    assert put(hub, SEALED).status == 200
    reply = hub.get(path_of(SEALED))
    assert (reply.status, reply.body) == (200, SEALED)


@pytest.mark.parametrize("size", [0, 1, BATCH_BYTES - 1, BATCH_BYTES, BATCH_BYTES + 1, 3 * BATCH_BYTES + 5, MOST])
def test_an_attachment_of_any_size_comes_back_as_it_was(hub: Hub, size: int) -> None:
    sealed = os.urandom(size)
    assert put(hub, sealed).status == 201
    assert hub.get(path_of(sealed)).body == sealed
    assert not list((hub.data_dir / "attachments" / "drafts").iterdir())


def test_an_attachment_may_come_in_chunks(hub: Hub) -> None:
    sealed = os.urandom(2 * BATCH_BYTES)
    connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=PATIENCE_S)
    pieces = (sealed[start : start + 70_000] for start in range(0, len(sealed), 70_000))
    connection.request("PUT", path_of(sealed), pieces, {"transfer-encoding": "chunked"}, encode_chunked=True)
    assert connection.getresponse().status == 201
    connection.close()
    assert hub.get(path_of(sealed)).body == sealed


def test_what_is_kept_is_there_after_a_restart_and_fsck_is_content(tmp_path: Path) -> None:
    data_dir, sealed = make_dir(tmp_path), os.urandom(MIB)
    with running(data_dir) as hub:
        assert put(hub, sealed).status == 201
        assert put(hub, sealed).status == 200
    with running(data_dir) as hub:
        assert hub.get(path_of(sealed)).body == sealed
        assert put(hub, sealed).status == 200
    assert fsck.check(data_dir).verdict is fsck.FsckVerdict.CLEAN


@pytest.mark.parametrize("size", [1, BATCH_BYTES + 1])
def test_an_attachment_that_has_rotted_can_be_brought_again(hub: Hub, size: int) -> None:
    sealed = os.urandom(size)
    assert put(hub, sealed).status == 201
    (path,) = files(hub)
    for rotten in (b"", sealed[:-1], sealed[:-1] + bytes([sealed[-1] ^ 1]), sealed + b"x"):
        path.write_bytes(rotten)
        assert put(hub, sealed).status == 200  # it is already stored
        assert hub.get(path_of(sealed)).body == sealed
        assert files(hub) == [path]


def test_an_attachment_being_read_is_not_changed_by_a_second_upload(hub: Hub) -> None:
    sealed = os.urandom(BATCH_BYTES)
    put(hub, sealed)
    store = AttachmentStore(QuickDisk(), Folders(hub.data_dir))
    reading = store.mapped(h(sealed))
    assert not store.put(h(sealed), sealed)
    assert reading is not None
    assert reading[:] == sealed


def test_an_attachment_under_another_name_is_refused_and_leaves_nothing(hub: Hub) -> None:
    for sealed in (b"that", os.urandom(2 * BATCH_BYTES)):
        reply = hub.ask("PUT", path_of(b"this"), sealed)
        assert code_of(reply) == (400, "E.BAD_REQUEST")
    assert hub.get(path_of(b"this")).status == 404
    until(lambda: files(hub) == [])


def files(hub: Hub) -> list[Path]:
    return [path for path in (hub.data_dir / "attachments").rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["", "00", "z" * 64, "A" * 64, "../" * 21 + "x", "0" * 63, "0" * 65])
def test_what_is_no_coid_is_refused(hub: Hub, name: str) -> None:
    assert code_of(hub.get(f"/tooling/attachments/{name}")) == (400, "E.BAD_REQUEST")
    assert code_of(hub.ask("PUT", f"/tooling/attachments/{name}", b"x")) == (400, "E.BAD_REQUEST")


def test_head_returns_the_size_and_no_body(hub: Hub) -> None:
    sealed = os.urandom(BATCH_BYTES)
    put(hub, sealed)
    reply = hub.ask("HEAD", path_of(sealed))
    assert (reply.status, reply.headers["content-length"], reply.body) == (200, str(len(sealed)), b"")
    assert hub.ask("HEAD", path_of(b"other")).status == 404
    assert hub.ask("HEAD", "/healthz").status == 200


def test_nothing_else_is_put(hub: Hub) -> None:
    for path in ("/tooling/status", "/tooling/attachments", "/v1/submit", "/"):
        assert code_of(hub.ask("PUT", path, b"x")) == (404, "E.NOT_FOUND")


# Limits.


def test_an_attachment_has_a_largest_size(hub: Hub) -> None:
    for size, status in ((MOST, 201), (MOST + 1, 413)):
        reply = put(hub, bytes(size))
        assert reply.status == status
    assert reply.error().code == "E.LIMIT"


@contextmanager
def raw(hub: Hub) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE_S) as connection:
        yield connection


def head(sealed: bytes, *fields: str, length: int | None = None) -> bytes:
    size = len(sealed) if length is None else length
    lines = [f"PUT {path_of(sealed)} HTTP/1.1", "host: hub", f"content-length: {size}", *fields, "", ""]
    return "\r\n".join(lines).encode()


def status_of(connection: socket.socket) -> int:
    return int(connection.recv(4096).split(b" ")[1])


def test_an_attachment_that_is_too_large_is_refused_before_it_is_sent(hub: Hub) -> None:
    with raw(hub) as connection:
        connection.sendall(head(b"x", "expect: 100-continue", length=MOST + 1))
        assert status_of(connection) == 413


def test_an_attachment_without_leave_is_refused_before_it_is_sent(strict: Hub) -> None:
    with raw(strict) as connection:
        connection.sendall(head(SEALED, "expect: 100-continue"))
        assert status_of(connection) == 401


def test_an_attachment_that_breaks_off_leaves_nothing(hub: Hub) -> None:
    sealed = os.urandom(4 * BATCH_BYTES)
    with raw(hub) as connection:
        connection.sendall(head(sealed) + sealed[:-1])
        until(lambda: files(hub) != [])
    until(lambda: files(hub) == [])
    assert hub.get(path_of(sealed)).status == 404
    assert put(hub, sealed).status == 201


def test_a_hub_that_stops_amid_an_upload_leaves_what_the_next_start_removes(tmp_path: Path) -> None:
    data_dir, sealed = make_dir(tmp_path), os.urandom(4 * BATCH_BYTES)
    hub = Hub(data_dir, settings={"admission": Admission.OPEN}).start()
    with raw(hub) as connection:
        connection.sendall(head(sealed) + sealed[:-1])
        until(lambda: files(hub) != [])
        hub.stop(grace_s=0.0)
    (data_dir / "attachments" / "drafts" / "left-by-a-crash.draft").write_bytes(b"x")
    with running(data_dir) as again:
        assert files(again) == []


class SlowDisk(QuickDisk):
    """Blocks every write of a draft until released."""

    def __init__(self) -> None:
        self.gate = Event()
        self.waiting = Event()
        self.drafts: set[int] = set()

    def open_append(self, path: Path, mode: int = 0o644) -> int:
        fd = super().open_append(path, mode)
        (self.drafts.add if path.suffix == ".draft" else self.drafts.discard)(fd)
        return fd

    def write(self, fd: int, data: bytes) -> None:
        if fd in self.drafts:
            self.waiting.set()
            self.gate.wait(PATIENCE_S)
        super().write(fd, data)


def test_a_slow_disk_holds_the_peer_and_not_the_memory_or_anyone_else(tmp_path: Path) -> None:
    disk, sealed = SlowDisk(), os.urandom(8 * MIB)
    with running(make_dir(tmp_path), disk=disk) as hub, raw(hub) as connection:
        connection.sendall(head(sealed))
        connection.setblocking(False)
        sent = 0
        # While the hub reads, it accepts more; each response to another request gives it time to.
        quiet = 0
        while quiet < 20:
            try:
                sent += connection.send(sealed[sent : sent + 65536])
                quiet = 0
            except BlockingIOError:
                assert hub.get("/healthz").status == 200
                quiet += 1
        assert disk.waiting.is_set()
        assert sent < len(sealed)
        disk.gate.set()
        connection.settimeout(PATIENCE_S)
        connection.sendall(sealed[sent:])
        assert status_of(connection) == 201
        assert hub.get(path_of(sealed)).body == sealed


def test_tiny_pieces_take_little_more_than_their_size(hub: Hub) -> None:
    count = 20_000

    async def feed() -> int:
        head = Request("PUT", "/", "", {}, b"", "127.0.0.1", "1.1")
        upload = hub.service.uploads.begin(head, bytes(32))
        assert isinstance(upload, AttachmentUpload)
        upload.on_start(lambda _: None, lambda _: None)
        tracemalloc.start()
        try:
            for number in range(count):
                upload.on_data(b"%04x" % number)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            upload.on_abort()

    assert 4 * count < BATCH_BYTES
    assert hub.do(feed()) < 8 * count


class FullDisk(QuickDisk):
    """Has no space for drafts beyond the first piece, while `full`."""

    def __init__(self) -> None:
        self.full = True
        self.drafts: dict[int, int] = {}

    def open_append(self, path: Path, mode: int = 0o644) -> int:
        fd = super().open_append(path, mode)
        self.drafts.pop(fd, None)
        if path.suffix == ".draft":
            self.drafts[fd] = 0
        return fd

    def write(self, fd: int, data: bytes) -> None:
        if self.full and fd in self.drafts:
            self.drafts[fd] += len(data)
            if self.drafts[fd] > BATCH_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data)


def test_a_full_disk_is_said_amid_an_upload_and_leaves_nothing(tmp_path: Path) -> None:
    disk, sealed = FullDisk(), os.urandom(8 * MIB)
    with running(make_dir(tmp_path), disk=disk) as hub:
        reply = put(hub, sealed)
        assert code_of(reply) == (503, "E.UNAVAILABLE")
        assert "No space left" in reply.error().message
        until(lambda: files(hub) == [])
        assert hub.writer().send().stream_seq == 1
        disk.full = False
        assert put(hub, sealed).status == 201


def test_attachments_leave_room_for_the_log(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    disk = os.statvfs(data_dir)
    with running(data_dir, disk_reserve_bytes=disk.f_blocks * disk.f_frsize) as hub:
        reply = put(hub, SEALED)
        assert code_of(reply) == (503, "E.UNAVAILABLE")
        assert reply.headers["retry-after"] == "60"
        assert hub.writer().send().stream_seq == 1


def test_what_is_promised_and_not_yet_written_counts_as_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_dir = make_dir(tmp_path)
    room = 4 * MIB
    disk = os.statvfs(data_dir)
    free = disk.f_bavail * disk.f_frsize
    # Other programs write to the same disk meanwhile, so the free space stays the same for the hub.
    monkeypatch.setattr(os, "statvfs", lambda folder: disk)
    with running(data_dir, disk_reserve_bytes=free - room * 8) as hub:
        with raw(hub) as connection:
            connection.sendall(head(b"promised", length=room * 7) + b"x")
            until(lambda: hub.service.uploads.reserved_bytes == room * 7)
            assert code_of(put(hub, bytes(room * 2))) == (503, "E.UNAVAILABLE")
        until(lambda: hub.service.uploads.reserved_bytes == 0)
        assert put(hub, bytes(room * 2)).status == 201
        assert hub.service.uploads.reserved_bytes == 0


# Permission.


def test_under_capabilities_attachments_need_leave(strict: Hub) -> None:
    assert code_of(put(strict, SEALED)) == (401, "E.UNAUTHORIZED")
    assert code_of(put(strict, SEALED, authorization="Bearer x")) == (401, "E.UNAUTHORIZED")
    assert code_of(put(strict, SEALED, authorization="Bearer")) == (401, "E.UNAUTHORIZED")
    assert code_of(put(strict, SEALED, authorization=f"Basic {TOKEN}")) == (401, "E.UNAUTHORIZED")
    assert put(strict, SEALED, authorization=f"Bearer {TOKEN}").status == 201
    assert strict.get(path_of(SEALED)).body == SEALED


def test_a_capability_to_write_also_permits_uploads(strict: Hub) -> None:
    writer = strict.granted()
    made = proof(strict, writer, SEALED)
    assert put(strict, SEALED, made).status == 201
    assert put(strict, SEALED, made).status == 200
    assert strict.get(path_of(SEALED)).body == SEALED
    writer.send()


def test_a_capability_counts_as_soon_as_it_is_logged_and_after_a_restart(tmp_path: Path) -> None:
    clock, data_dir = Clock(), make_dir(tmp_path)
    with running(data_dir, clock, admission=Admission.CAPABILITY) as hub:
        writer = hub.granted()
        assert put(hub, b"one", proof(hub, writer, b"one")).status == 201
    with running(data_dir, clock, admission=Admission.CAPABILITY) as hub:
        assert put(hub, b"two", proof(hub, writer, b"two")).status == 201


def test_a_proof_holds_for_one_attachment_at_one_hub(strict: Hub) -> None:
    writer = strict.granted()
    stranger = replace(writer, key=SigningKey.generate())
    wrong = {
        "another attachment": proof(strict, writer, SEALED, coid=h(b"other")),
        "another hub": proof(strict, writer, SEALED, hub_id=h(b"other")),
        "another key": proof(strict, stranger, SEALED),
        "a changed time": replace(proof(strict, writer, SEALED), made_at=START + 1),
        "another size": proof(strict, writer, SEALED, size=len(SEALED) + 1),
        "a changed size": replace(proof(strict, writer, SEALED, size=1), size=len(SEALED)),
    }
    for name, made in wrong.items():
        assert code_of(put(strict, SEALED, made)) == (401, "E.UNAUTHORIZED"), name
    assert strict.get(path_of(SEALED)).status == 404


@pytest.mark.parametrize("text", ["veen-upload", "veen-upload 00", "veen-upload zz", "Veen-Upload " + "00" * 200])
def test_what_is_no_proof_is_unauthorized(strict: Hub, text: str) -> None:
    assert code_of(put(strict, SEALED, authorization=text)) == (401, "E.UNAUTHORIZED")


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_proof_is_of_use_for_a_while(strict: Hub, sign: int) -> None:
    writer = strict.granted()
    late = proof(strict, writer, SEALED, made_at=START + sign * (MAX_UPLOAD_SKEW_SEC + 1))
    reply = put(strict, SEALED, late)
    assert code_of(reply) == (401, "E.UNAUTHORIZED")
    assert (reply.error().detail or {})["hub_ts"] == START
    assert put(strict, SEALED, proof(strict, writer, SEALED, made_at=START + sign * MAX_UPLOAD_SKEW_SEC)).status == 201


def test_a_capability_that_is_unknown_or_expired_is_forbidden(tmp_path: Path) -> None:
    clock = Clock()
    with running(make_dir(tmp_path), clock, admission=Admission.CAPABILITY) as hub:
        writer = hub.granted(ttl=10)
        unknown = proof(hub, writer, SEALED, auth_ref=h(b"unknown"))
        assert code_of(put(hub, SEALED, unknown)) == (403, "E.FORBIDDEN")
        clock.now += 10
        assert put(hub, SEALED, proof(hub, writer, SEALED)).status == 201
        clock.now += 1
        reply = put(hub, SEALED, proof(hub, writer, SEALED))
        assert code_of(reply) == (403, "E.FORBIDDEN")
        assert (reply.error().detail or {})["expires_at"] == START + 10


def test_a_proof_for_too_much_is_refused_before_it_is_sent(strict: Hub) -> None:
    writer = strict.granted()
    made = proof(strict, writer, SEALED, size=MOST + 1)
    with raw(strict) as connection:
        fields = (f"authorization: {made.header()}", "transfer-encoding: chunked", "")
        connection.sendall("\r\n".join([f"PUT {path_of(SEALED)} HTTP/1.1", "host: hub", *fields, ""]).encode())
        assert status_of(connection) == 413


def test_fewer_or_more_bytes_than_were_proved_are_refused(strict: Hub) -> None:
    writer = strict.granted()
    for size in (len(SEALED) - 1, len(SEALED) + 1):
        made = proof(strict, writer, SEALED, size=size)
        connection = http.client.HTTPConnection("127.0.0.1", strict.port, timeout=PATIENCE_S)
        headers = {"transfer-encoding": "chunked", "authorization": made.header()}
        connection.request("PUT", path_of(SEALED), iter([SEALED]), headers, encode_chunked=True)
        assert connection.getresponse().status == 400
        connection.close()
    assert strict.get(path_of(SEALED)).status == 404


def test_where_admission_is_open_a_wrong_proof_is_still_wrong(hub: Hub) -> None:
    key = SigningKey.generate()
    token = cap_token.mint(ISSUER, key.public_key, [naming.stream_id("s")], 1000)
    hub.authorize(token).read(AuthorizeResponse)
    writer = hub.writer("s", key, token)
    assert put(hub, SEALED, proof(hub, writer, SEALED)).status == 201
    assert code_of(put(hub, SEALED, proof(hub, writer, SEALED, size=1))) == (401, "E.UNAUTHORIZED")
    assert code_of(put(hub, SEALED, authorization="Bearer wrong")) == (401, "E.UNAUTHORIZED")


# Quotas.


def test_each_capability_has_an_allowance_that_fills_again(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"upload_bytes_per_sec": 1000, "upload_burst_bytes": 2 * 1000 + TAG_BYTES}
    limits = Limits(max_attachment_bytes=1000)
    with running(make_dir(tmp_path, limits=limits), admission=Admission.CAPABILITY, **settings) as hub:
        one, other = hub.granted("one"), hub.granted("other")
        for number in range(2):
            sealed = bytes([number]) * 1000
            assert put(hub, sealed, proof(hub, one, sealed)).status == 201
        sealed = b"z" * 1000
        reply = put(hub, sealed, proof(hub, one, sealed))
        assert reply.refusal() == (429, "E.RATE", "auth", "CAP_RATE")
        assert reply.headers["retry-after"] == "1"
        assert put(hub, sealed, proof(hub, other, sealed)).status == 201
        assert put(hub, b"y" * 1000, authorization=f"Bearer {TOKEN}").status == 201
        # Messages have their own rate.
        one.send()


def test_where_admission_is_open_each_address_has_an_allowance(tmp_path: Path) -> None:
    limits = Limits(max_attachment_bytes=1000)
    with running(make_dir(tmp_path, limits=limits), upload_bytes_per_sec=1, upload_burst_bytes=1) as hub:
        assert put(hub, bytes(1000)).status == 201
        assert put(hub, bytes(1000)).refusal()[:2] == (429, "E.RATE")
        assert put(hub, bytes(1000), authorization=f"Bearer {TOKEN}").status == 200


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_an_upload_quota_is_shared_by_the_connections_of_one_caller(
    tmp_path: Path, first: str, second: str, together: bool
) -> None:
    limits = Limits(max_attachment_bytes=1000)
    settings: dict[str, Any] = {"upload_bytes_per_sec": 1, "upload_burst_bytes": 1}
    with running(make_dir(tmp_path, limits=limits), disk=QuickDisk(), **settings) as hub:

        async def begin(peer: str) -> bool:
            head = Request("PUT", "/", "", {b"content-length": b"1000"}, b"", peer, "1.1")
            return not isinstance(hub.service.uploads.begin(head, bytes(32)), Response)

        assert [hub.do(begin(first)), hub.do(begin(first))] == [True, False]
        assert hub.do(begin(second)) is not together


def test_one_caller_holds_an_eighth_of_the_uploads_and_gives_them_back(hub: Hub) -> None:
    uploads = hub.service.uploads
    most = uploads.config.max_uploads_per_owner()
    assert (most, uploads.config.max_uploads()) == (16, 128)

    async def begin(peer: str, **headers: str) -> AttachmentUpload | Response:
        given = {name.encode(): value.encode() for name, value in {"content-length": "10", **headers}.items()}
        return uploads.begin(Request("PUT", "/", "", given, b"", peer, "1.1"), bytes(32))

    async def abort(one: AttachmentUpload) -> None:
        one.on_abort()

    running = [hub.do(begin("192.0.2.1")) for _ in range(most)]
    assert all(isinstance(one, AttachmentUpload) for one in running)
    refused = hub.do(begin("192.0.2.1"))
    assert isinstance(refused, Response)
    assert (refused.status, dict(refused.headers)[b"retry-after"]) == (503, b"1")
    assert b"at most 16 attachments of one client at a time" in bytes(refused.body)
    for other in (hub.do(begin("192.0.2.2")), hub.do(begin("192.0.2.1", authorization=f"Bearer {TOKEN}"))):
        assert isinstance(other, AttachmentUpload)
        hub.do(abort(other))
    for one in running:
        assert isinstance(one, AttachmentUpload)
        hub.do(abort(one))
    assert uploads.running == 0
    again = hub.do(begin("192.0.2.1"))
    assert isinstance(again, AttachmentUpload)
    hub.do(abort(again))


def test_new_attachments_are_counted(hub: Hub) -> None:
    for sealed in (b"one", b"two", b"one"):
        put(hub, sealed)
    put(hub, b"three", authorization="Bearer wrong")
    text = hub.get("/metrics").body.decode()
    assert "veen_attachments_total 2.0" in text
    assert "veen_attachment_bytes_total 6.0" in text
