"""An anchor binds a checkpoint to a system outside its hub, and shows when either has changed."""

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bridge.bridge_fixture import Zones, zones
from tests.bridge.tsa_server import Authority, authority, certify
from tests.full_disk import no_file_longer_than
from veen.bridge import anchors
from veen.bridge.anchor_backends import FileLog, GitRepo, OtherHub, TimeStampingAuthority
from veen.bridge.anchors import Anchored, AnchorRef, AnchorStatement, AnchorStore, Backend, Cadence
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.trust import Pin
from veen.core import Malformed, Unavailable, Unverified, VeenError, cbor
from veen.core.hashing import h
from veen.hub.admission_rules import Admission

NEWS = "news"
STATEMENT = AnchorStatement(h(b"root"), 0, 1_700_000_000, bytes(16))
OTHER = replace(STATEMENT, root=h(b"another root"))


@pytest.fixture(scope="module")
def tsa(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    with authority(tmp_path_factory.mktemp("tsa")) as found:
        yield found


def git(path: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", "-C", str(path), *arguments], check=True, capture_output=True, text=True)
    return ran.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "anchors.git")], check=True)
    return tmp_path / "anchors.git"


def published(backend: Backend, statement: AnchorStatement = STATEMENT) -> bytes:
    given = (statement.root, statement.epoch, statement.ts, statement.nonce)
    return asyncio.run(anchors.anchor_publish(backend, *given))


def verified(backend: Backend, root: bytes, ref: bytes) -> int:
    return asyncio.run(anchors.anchor_verify(backend, root, ref))


def refused(backend: Backend, root: bytes, ref: bytes) -> VeenError:
    with pytest.raises((Malformed, Unverified, Unavailable)) as caught:
        verified(backend, root, ref)
    return caught.value


def changed(ref: bytes, **fields: object) -> bytes:
    return replace(AnchorRef.decode(ref), **fields).encode()  # type: ignore[arg-type]


# Any backend.


@pytest.fixture(params=["file", "git", "tsa"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, repo: Path, tsa: Authority) -> Backend:
    made: dict[str, Backend] = {
        "file": FileLog(tmp_path / "anchors"),
        "git": GitRepo(repo),
        "tsa": TimeStampingAuthority(tsa.url, tsa.roots),
    }
    return made[request.param]


def test_a_published_anchor_verifies_repeatedly(backend: Backend) -> None:
    refs = [published(backend, replace(STATEMENT, nonce=bytes([number] * 16))) for number in range(3)]
    for ref in refs:
        assert verified(backend, STATEMENT.root, ref) > 1_700_000_000
        assert AnchorRef.decode(ref).kind == backend.kind


def test_an_anchor_verifies_for_one_statement_only(backend: Backend) -> None:
    ref = published(backend)
    assert isinstance(refused(backend, OTHER.root, ref), Unverified)
    assert isinstance(refused(backend, OTHER.root, changed(ref, statement=OTHER)), Unverified)
    later = replace(STATEMENT, ts=STATEMENT.ts + 1)
    assert isinstance(refused(backend, STATEMENT.root, changed(ref, statement=later)), Unverified)


def test_an_anchor_verifies_with_its_kind_of_backend_only(backend: Backend) -> None:
    assert "backend" in str(refused(backend, STATEMENT.root, changed(published(backend), kind="other")))


def test_a_damaged_proof_does_not_verify(backend: Backend) -> None:
    ref = published(backend)
    proof = AnchorRef.decode(ref).proof
    for at in range(0, len(proof), max(1, len(proof) // 23)):
        damaged = proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :]
        assert isinstance(refused(backend, STATEMENT.root, changed(ref, proof=damaged)), VeenError)
    assert isinstance(refused(backend, STATEMENT.root, changed(ref, proof=b"")), VeenError)


# A file.


def test_any_changed_line_is_detected(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "anchors")
    refs = [published(log, replace(STATEMENT, ts=number)) for number in range(4)]
    good = log.path.read_bytes()
    lines = good.splitlines(keepends=True)
    for spoiled in (
        lines[1:],
        lines[:1] + lines[2:],
        [lines[1], lines[0], *lines[2:]],
        [lines[0], lines[0], *lines[1:]],
    ):
        log.path.write_bytes(b"".join(spoiled))
        assert isinstance(refused(log, STATEMENT.root, refs[3]), Unverified)
    for at in range(0, len(good), 37):
        log.path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert isinstance(refused(log, STATEMENT.root, refs[3]), Unverified)
    log.path.write_bytes(b"".join(lines[:2]))
    assert "is in line 4" in str(refused(log, STATEMENT.root, refs[3]))
    assert verified(log, STATEMENT.root, refs[1])


def test_a_valid_line_in_place_of_another_is_detected(tmp_path: Path) -> None:
    log, forged = FileLog(tmp_path / "anchors"), FileLog(tmp_path / "forged")
    refs = [published(log, replace(STATEMENT, ts=number)) for number in range(2)]
    published(forged, OTHER)
    second = log.path.read_bytes().splitlines(keepends=True)[1]
    log.path.write_bytes(forged.path.read_bytes() + second)
    assert "line 2" in str(refused(log, STATEMENT.root, refs[1]))


def test_an_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "anchors")
    first = published(log)
    with log.path.open("ab") as file:
        file.write(b"2 abcdef")
    second = published(log, OTHER)
    assert verified(log, STATEMENT.root, first)
    assert verified(log, OTHER.root, second)
    assert len(log.path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("fits", [0, 1, 40])
def test_a_full_disk_leaves_no_incomplete_line(tmp_path: Path, fits: int) -> None:
    log = FileLog(tmp_path / "anchors")
    first = published(log)
    whole = log.path.read_bytes()
    with no_file_longer_than(len(whole) + fits), pytest.raises(Unavailable, match="anchors"):
        published(log, OTHER)
    assert log.path.read_bytes() == whole
    second = published(log, OTHER)
    assert verified(log, STATEMENT.root, first)
    assert verified(log, OTHER.root, second)


def test_a_changed_file_is_not_extended(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "anchors")
    published(log)
    log.path.write_bytes(b"0" + log.path.read_bytes())
    with pytest.raises(Unverified):
        published(log, OTHER)


def test_an_unusable_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="nowhere"):
        published(FileLog(tmp_path / "nowhere" / "anchors"))
    assert isinstance(
        refused(FileLog(tmp_path / "gone"), STATEMENT.root, published(FileLog(tmp_path / "a"))), Unavailable
    )


# A repository.


def test_anchors_are_a_chain_of_commits_on_their_own_branch(repo: Path) -> None:
    backend = GitRepo(repo)
    refs = [published(backend, replace(STATEMENT, ts=number)) for number in range(3)]
    commits = [AnchorRef.decode(ref).proof.decode() for ref in refs]
    assert git(repo, "rev-list", "veen-anchors").split() == commits[::-1]
    assert git(repo, "show", "--no-patch", "--format=%s", commits[0]).startswith("anchor ")


def test_a_rewritten_branch_does_not_verify(repo: Path) -> None:
    backend = GitRepo(repo)
    ref = published(backend)
    git(repo, "update-ref", "-d", "refs/heads/veen-anchors")
    assert isinstance(refused(backend, STATEMENT.root, ref), Unverified)
    published(backend, OTHER)
    assert isinstance(refused(backend, STATEMENT.root, ref), Unverified)


def test_a_commit_of_another_file_is_not_an_anchor(repo: Path) -> None:
    backend = GitRepo(repo)
    ref = published(backend)
    other = AnchorRef.decode(published(backend, OTHER)).proof
    assert "another statement" in str(refused(backend, STATEMENT.root, changed(ref, proof=other)))
    tree = git(repo, "hash-object", "-t", "tree", "-w", "/dev/null")
    empty = git(repo, "-c", "user.name=x", "-c", "user.email=x@x", "commit-tree", tree, "-p", other.decode(), "-m", "x")
    git(repo, "update-ref", "refs/heads/veen-anchors", empty)
    assert isinstance(refused(backend, STATEMENT.root, changed(ref, proof=empty.encode())), Unverified)
    assert isinstance(refused(backend, STATEMENT.root, changed(ref, proof=b"--help")), Malformed)


def test_anchors_are_pushed_to_the_remote(tmp_path: Path, repo: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "copy.git")], check=True)
    git(repo, "remote", "add", "copy", str(tmp_path / "copy.git"))
    ref = published(GitRepo(repo, remote="copy"))
    assert verified(GitRepo(tmp_path / "copy.git"), STATEMENT.root, ref)


def test_a_folder_without_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not a git repository"):
        published(GitRepo(tmp_path))


# A time-stamping authority.


def test_a_time_stamp_of_another_authority_does_not_verify(tmp_path: Path, tsa: Authority) -> None:
    ref = published(TimeStampingAuthority(tsa.url, tsa.roots))
    certify(tmp_path)
    assert isinstance(refused(TimeStampingAuthority(None, tmp_path / "ca.pem"), STATEMENT.root, ref), Unverified)
    assert verified(TimeStampingAuthority(None, tsa.roots), STATEMENT.root, ref)


def test_a_time_stamp_for_another_request_is_rejected(tsa: Authority) -> None:
    backend = TimeStampingAuthority(tsa.url, tsa.roots)
    kept = AnchorRef.decode(published(backend, OTHER)).proof
    tsa.answer = (200, "application/timestamp-reply", kept)
    try:
        with pytest.raises(Unverified, match="another request"):
            published(backend)
    finally:
        tsa.answer = None


@pytest.mark.parametrize(
    "answer",
    [
        (500, "text/plain", b"broken"),
        (200, "text/html", b"<html>"),
        (200, "application/timestamp-reply", b"junk"),
        (200, "application/timestamp-reply", bytes.fromhex("30053003020102")),
        (200, "application/timestamp-reply", bytes.fromhex("30053003020100")),
        (200, "application/timestamp-reply", bytes.fromhex("30053003020109")),
    ],
    ids=["an error", "a page", "junk", "a refusal", "no token", "an unknown status"],
)
def test_an_answer_without_time_stamp_is_rejected(tsa: Authority, answer: tuple[int, str, bytes]) -> None:
    tsa.answer = answer
    try:
        with pytest.raises((Unavailable, Malformed)):
            published(TimeStampingAuthority(tsa.url, tsa.roots))
    finally:
        tsa.answer = None


def test_an_unusable_authority_is_named_in_the_error(tsa: Authority) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/"):
        published(TimeStampingAuthority("http://127.0.0.1:1/", tsa.roots))
    with pytest.raises(Unavailable, match="address"):
        published(TimeStampingAuthority(None, tsa.roots))
    with pytest.raises(Unavailable, match="certificates"):
        TimeStampingAuthority(tsa.url, tsa.root / "serial")


# Checkpoints of a stream.


class Anchorer:
    """An identity with a stream at one hub that it anchors."""

    def __init__(self, at: Zones, folder: ClientDir, place: Path) -> None:
        self.at = at
        self.folder = folder
        self.store = AnchorStore(place / "anchors")
        self.log = FileLog(place / "log")

    def client(self, online: bool = True) -> Client:
        hub = self.at.online if online else self.at.offline
        pin = Pin(key=hub.service.hub_metadata.identity.hub_id)
        return Client(f"http://127.0.0.1:{hub.port}", self.folder, pin=pin)

    async def send(self, count: int) -> None:
        async with self.client() as client:
            for number in range(count):
                await client.send(NEWS, b"%d" % number)

    async def publish(self, backend: Backend) -> Anchored:
        async with self.client() as client:
            return (await anchors.publish(client, NEWS, backend, self.store)).anchored


@pytest.fixture
def anchorer(place: Path) -> Iterator[Anchorer]:
    with zones(place, admission=Admission.OPEN) as at, ClientDir.create(place / "keeper", None, 1) as folder:
        folder.stream_keys.create(NEWS)
        folder.stream_keys.create("anchors")
        yield Anchorer(at, folder, place)


def test_an_anchor_is_stored_with_its_checkpoint(anchorer: Anchorer) -> None:
    async def run() -> None:
        await anchorer.send(3)
        made = await anchorer.publish(anchorer.log)
        ((path, kept),) = anchorer.store
        assert kept == made
        assert path.name.startswith(kept.checkpoint.label_curr.hex())
        assert (kept.checkpoint.upto_seq, kept.ref.statement.root) == (3, kept.checkpoint.mmr_root)
        assert await anchors.verify(kept, anchorer.log, anchorer.at.source_id)

    asyncio.run(run())


def test_evidence_of_another_hub_verifies_offline(anchorer: Anchorer) -> None:
    async def run() -> None:
        await anchorer.send(2)
        async with anchorer.client(online=False) as other:
            made = await anchorer.publish(OtherHub(other, other.hub_id))
        offline = OtherHub(None, anchorer.at.target_id)
        assert await anchors.verify(made, offline, anchorer.at.source_id)
        with pytest.raises(Unverified):
            await anchors.verify(made, OtherHub(None, anchorer.at.source_id), anchorer.at.source_id)
        with pytest.raises(Unverified):
            await anchors.verify(made, offline, anchorer.at.target_id)
        with pytest.raises(Unavailable):
            await offline.publish(STATEMENT)
        with pytest.raises(Unverified, match="no entry with this statement"):
            await offline.verify(STATEMENT, made.ref.proof)

    asyncio.run(run())


def test_an_anchor_of_an_unsigned_checkpoint_does_not_verify(anchorer: Anchorer) -> None:
    async def run() -> None:
        await anchorer.send(2)
        made = await anchorer.publish(anchorer.log)
        checkpoint = made.checkpoint
        forged = (
            replace(made, checkpoint=replace(checkpoint, upto_seq=1)),
            replace(made, checkpoint=replace(checkpoint, mmr_root=bytes(32))),
            replace(made, stream_id=bytes(32)),
            replace(made, source=replace(made.source, signature=replace(made.source.signature, sig=bytes(64)))),
        )
        for one in forged:
            with pytest.raises(Unverified):
                await anchors.verify(one, anchorer.log, anchorer.at.source_id)
        await anchorer.send(1)
        later = await anchorer.publish(anchorer.log)
        with pytest.raises(Unverified, match="another root"):
            await anchors.verify(replace(later, anchor_ref=made.anchor_ref), anchorer.log, anchorer.at.source_id)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("cadence", "last", "size", "now", "due"),
    [
        (Cadence(entries=10), None, 0, 100, False),
        (Cadence(entries=10), None, 9, 100, False),
        (Cadence(entries=10), None, 10, 100, True),
        (Cadence(entries=10), (10, 0), 19, 10**9, False),
        (Cadence(entries=10), (10, 0), 20, 0, True),
        (Cadence(seconds=60), None, 0, 10**9, False),
        (Cadence(seconds=60), None, 1, 10**9, True),
        (Cadence(seconds=60), (5, 1000), 6, 1059, False),
        (Cadence(seconds=60), (5, 1000), 6, 1060, True),
        (Cadence(seconds=60), (5, 1000), 5, 9999, False),
        (Cadence(10, 60), (5, 1000), 15, 1001, True),
        (Cadence(10, 60), (5, 1000), 14, 1059, False),
        (Cadence(10, 60), (5, 1000), 6, 1060, True),
    ],
)
def test_an_anchor_is_due_by_count_and_by_time(
    cadence: Cadence, last: tuple[int, int] | None, size: int, now: int, due: bool
) -> None:
    assert cadence.due(last, size, now) is due


@pytest.mark.parametrize("given", [(None, None), (0, None), (None, 0), (1, 0)])
def test_a_cadence_needs_entries_or_seconds(given: tuple[int | None, int | None]) -> None:
    with pytest.raises(ValueError, match="cadence"):
        Cadence(*given)


def test_a_due_stream_is_anchored_by_any_process(anchorer: Anchorer) -> None:
    async def run() -> None:
        cadence = Cadence(entries=3)
        async with anchorer.client() as client:
            assert await anchors.once(client, NEWS, anchorer.log, anchorer.store, cadence) is None
        await anchorer.send(3)
        async with anchorer.client() as client:
            first = await anchors.once(client, NEWS, anchorer.log, anchorer.store, cadence)
            assert first
            assert first.anchored.checkpoint.upto_seq == 3
            assert await anchors.once(client, NEWS, anchorer.log, anchorer.store, cadence) is None
        await anchorer.send(2)
        async with anchorer.client() as client:
            assert await anchors.once(client, NEWS, anchorer.log, anchorer.store, cadence) is None
        await anchorer.send(1)
        async with anchorer.client() as client:
            running = anchors.run(client, NEWS, anchorer.log, anchorer.store, cadence, 0.01)
            assert (await anext(running)).anchored.checkpoint.upto_seq == 6
        assert [one.checkpoint.upto_seq for _, one in anchorer.store] == [3, 6]

    asyncio.run(run())


def test_a_file_that_is_not_an_anchor_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "x.anchor").write_bytes(cbor.encode([1]))
    with pytest.raises(Malformed, match=r"x\.anchor"):
        list(AnchorStore(tmp_path))
