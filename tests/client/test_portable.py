"""The portable set: an import is the same client, and a changed set is rejected."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.disks import Died, DyingDisk, FailingDisk, FullDisk, Last
from tests.client.ledger import NOW, STREAM, Ledger, messages
from tests.client.test_clientdir import CHEAP, names
from veen.client import ClientDir, Pending, WrongPassphrase, export_identity, import_identity
from veen.client import portable as manifests
from veen.client.portable import PortableManifest
from veen.client.writer_keys import WriterRequest
from veen.core import Malformed, Receipt, SigningKey, Unavailable, Unverified, cap_token, naming
from veen.core import receipt as receipts

DAY = 86_400
ISSUER = SigningKey.generate()


class Travelled:
    """A client with two hubs, capabilities, stream keys, rotations and a pending message."""

    def __init__(self, path: Path, passphrase: bytes | None = b"secret") -> None:
        self.dir = ClientDir.create(path, passphrase, NOW, cost=CHEAP)
        self.ledgers = [Ledger(), Ledger()]
        client = self.dir
        for ledger in self.ledgers:
            client.state.put_hub(ledger.hub_id, ledger.known().encode())
            client.state.put_hub_of(f"https://{ledger.hub_id.hex()[:8]}.example", ledger.hub_id)
        client.caps.add_all(
            b"".join(cap_token.mint(ISSUER, each, [STREAM], 9).encode() for each in client.card.client_ids)
        )
        client.caps.put_granted(self.ledgers[0].hub_id, next(iter(client.caps)).auth_ref(), NOW + 9 * DAY)
        client.stream_keys.create("news")
        client.stream_keys.add_public("logs", bytes.fromhex("09" * 32))
        for now in (NOW, NOW + DAY):
            for ledger in self.ledgers:
                writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, STREAM, now=now, capability=True))
                put = messages(writer, 5)
                client.outbox.put(writer, put)
                ledger.answer(client.state, put)
        client.state.put_checkpoint(self.ledgers[0].hub_id, self.ledgers[0].checkpoint())
        first = self.ledgers[0]
        writer = client.writer(WriterRequest(first.hub_id, first.label, STREAM, now=NOW + DAY, capability=True))
        self.waiting = tuple(messages(writer, 2))
        client.outbox.put(writer, self.waiting)

    def pending(self, client: ClientDir) -> tuple[Pending, ...]:
        return client.outbox.pending(self.ledgers[0].hub_id, self.ledgers[0].label)


@pytest.fixture
def travelled(place: Path) -> Travelled:
    made = Travelled(place / "client")
    export_identity(made.dir, place / "set", NOW + DAY)
    return made


def taken_up(place: Path, *, moved: bool = False, passphrase: bytes | None = b"secret") -> ClientDir:
    return import_identity(place / "set", place / "elsewhere", passphrase, NOW + DAY, moved=moved)


def test_the_set_has_the_parts_it_should(place: Path, travelled: Travelled) -> None:
    assert names(place / "set") == [
        "cap_tokens.cborseq",
        "card.cbor",
        "checkpoints.cborseq",
        "keystore.enc",
        "manifest.cbor",
        "payloads.cborseq",
        "receipts.cborseq",
        "routing_secret.cborseq",
        "state.cborseq",
        "sync_state.cborseq",
    ]
    every = [receipt for ledger in travelled.ledgers for receipt in ledger.receipts]
    data = (place / "set" / "receipts.cborseq").read_bytes()
    assert sorted(data[at : at + len(data) // 20] for at in range(0, len(data), len(data) // 20)) == sorted(
        receipt.encode() for receipt in every
    )
    assert (place / "set" / "payloads.cborseq").read_bytes() == b"".join(each.encoded for each in travelled.waiting)


@pytest.mark.parametrize("moved", [False, True])
def test_a_set_taken_up_elsewhere_is_the_same_client(place: Path, travelled: Travelled, moved: bool) -> None:
    old = travelled.dir
    with taken_up(place, moved=moved) as new:
        assert new.identity.id_sign.seed == old.identity.id_sign.seed
        assert new.identity.id_dh.secret == old.identity.id_dh.secret
        assert new.state.labels() == old.state.labels()
        for ledger in travelled.ledgers:
            assert new.state.hub(ledger.hub_id) == ledger.known().encode()
            assert new.state.hub_of(f"https://{ledger.hub_id.hex()[:8]}.example") == ledger.hub_id
            for receipt in ledger.receipts:
                assert new.state.receipt(ledger.hub_id, ledger.label, receipt.stream_seq) == receipt.encode()
        first = travelled.ledgers[0]
        assert new.state.checkpoint(first.hub_id, first.label) == first.checkpoint().encode()
        assert list(new.caps) == list(old.caps)
        assert new.caps.granted(first.hub_id, next(iter(new.caps)).auth_ref()) == NOW + 9 * DAY
        assert new.stream_keys.all() == old.stream_keys.all()
        news = new.stream_keys.secret(naming.stream_id("news"))
        assert news is not None
        assert travelled.pending(new) == travelled.waiting
        assert new.writers.history()[:2] == old.writers.history()
        first.answer(new.state, travelled.waiting)
        assert new.outbox.places() == ()
    assert names(place) == ["client", "elsewhere", "set"]


def test_a_client_that_moved_goes_on_where_the_other_stopped(place: Path, travelled: Travelled) -> None:
    first = travelled.ledgers[0]
    expected = travelled.dir.writer(WriterRequest(first.hub_id, first.label, STREAM, now=NOW + DAY, capability=True))
    with taken_up(place, moved=True) as new:
        writer = new.writer(WriterRequest(first.hub_id, first.label, STREAM, now=NOW + DAY, capability=True))
        assert (writer.client_id, writer.used, writer.cap) == (expected.client_id, expected.used, expected.cap)
        assert new.card.client_ids == travelled.dir.card.client_ids


def test_a_copy_never_writes_with_the_keys_of_the_other(place: Path, travelled: Travelled) -> None:
    first = travelled.ledgers[0]
    theirs = {travelled.dir.identity.client_key(n).public_key for n in range(50)}
    with taken_up(place) as new:
        assert theirs.isdisjoint(new.identity.client_key(n).public_key for n in range(50))
        writer = new.writer(WriterRequest(first.hub_id, first.label, STREAM, now=NOW + DAY))
        assert writer.client_id not in theirs
        assert (writer.generation, writer.next_client_seq) == (2, 1)
        assert new.card.client_ids[0] == writer.client_id
        assert new.identity.prekey(0).public_key == travelled.dir.identity.prekey(0).public_key


@pytest.mark.parametrize("moved", [False, True])
def test_the_rekey_ladder_is_not_exported(place: Path, travelled: Travelled, moved: bool) -> None:
    first = travelled.ledgers[0]
    old = travelled.dir
    with taken_up(place, moved=moved) as new:
        rk = new.state.rk(first.hub_id, first.label)
        assert rk != old.state.rk(first.hub_id, first.label)
        assert rk != old.identity.first_rk(first.label)


def test_a_copy_of_a_copy_is_taken_up_too(place: Path, travelled: Travelled) -> None:
    with taken_up(place) as copy:
        export_identity(copy, place / "set2", NOW + DAY)
    for moved in (False, True):
        target = place / f"third {moved}"
        with import_identity(place / "set2", target, b"secret", NOW + DAY, moved=moved) as third:
            assert len(third.writers.history()) == (3 if moved else 4)


def test_an_export_can_be_given_a_passphrase_of_its_own(place: Path) -> None:
    with ClientDir.create(place / "plain", None, NOW) as client:
        export_identity(client, place / "set", NOW, passphrase=b"for the road", cost=CHEAP)
    assert "keystore.enc" in names(place / "set")
    assert "keystore.key" not in names(place / "set")
    with pytest.raises(WrongPassphrase):
        taken_up(place, passphrase=b"secret")
    taken_up(place, passphrase=b"for the road").close()
    assert ClientDir.is_encrypted(place / "elsewhere")


def test_a_client_without_a_passphrase_stays_without_one(place: Path) -> None:
    with ClientDir.create(place / "plain", None, NOW) as client:
        export_identity(client, place / "set", NOW)
    assert "keystore.key" in names(place / "set")
    taken_up(place, passphrase=b"ignored").close()
    assert not ClientDir.is_encrypted(place / "elsewhere")


def test_a_set_of_a_client_that_never_did_anything_is_taken_up(place: Path) -> None:
    with ClientDir.create(place / "client", b"secret", NOW, cost=CHEAP) as client:
        export_identity(client, place / "set", NOW)
    with taken_up(place) as new:
        assert new.state.labels() == ()
        assert new.writers.current().generation == 1


def test_nothing_is_written_over(place: Path, travelled: Travelled) -> None:
    with pytest.raises(Unavailable, match="exists and is not an empty folder"):
        export_identity(travelled.dir, place / "set", NOW)
    with pytest.raises(Unavailable, match="exists and is not an empty folder"):
        import_identity(place / "set", place / "client", b"secret", NOW)


def test_a_wrong_passphrase_takes_up_nothing(place: Path, travelled: Travelled) -> None:
    for passphrase in (b"wrong", None):
        with pytest.raises((WrongPassphrase, Unavailable)):
            taken_up(place, passphrase=passphrase)
    assert names(place) == ["client", "set"]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def assert_rejected(place: Path, *kinds: type[Exception], match: str = ".") -> None:
    with pytest.raises(kinds, match=match):
        taken_up(place)
    assert "elsewhere" not in names(place)


def test_a_byte_changed_in_any_file_is_noticed(place: Path, travelled: Travelled) -> None:
    for path in files(place / "set"):
        whole = path.read_bytes()
        for at in {0, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
            assert_rejected(place, Unverified, Malformed)
        path.write_bytes(whole)
    taken_up(place).close()


def test_a_file_cut_short_or_gone_on_with_is_noticed(place: Path, travelled: Travelled) -> None:
    for path in files(place / "set"):
        whole = path.read_bytes()
        for data in (whole[:-1], whole + b"\0", b""):
            path.write_bytes(data)
            assert_rejected(place, Unverified, Malformed)
        path.write_bytes(whole)


def test_a_file_that_is_missing_or_was_added_is_named(place: Path, travelled: Travelled) -> None:
    for path in files(place / "set"):
        if path.name == "manifest.cbor":
            continue
        whole = path.read_bytes()
        path.unlink()
        name = path.relative_to(place / "set").as_posix()
        assert_rejected(place, Unverified, match=f"{name} is missing")
        path.write_bytes(whole)
    (place / "set" / "more").mkdir()
    (place / "set" / "more" / "x").write_bytes(b"x")
    assert_rejected(place, Unverified, match="more/x was added")


def test_a_folder_that_is_not_a_portable_set_is_rejected(place: Path) -> None:
    (place / "set").mkdir()
    assert_rejected(place, Unavailable, match=r"manifest\.cbor: No such file")
    (place / "set" / "manifest.cbor").write_bytes(b"rubbish")
    assert_rejected(place, Malformed, match=r"manifest\.cbor")


@pytest.mark.parametrize("name", ["../escape.cbor", "/etc/passwd", "a/../x.cbor", "a/b.cbor", "x.py", "", "a.cbor\n"])
def test_a_manifest_cannot_name_a_file_elsewhere(travelled: Travelled, place: Path, name: str) -> None:
    manifest = manifests.read_manifest(place / "set")
    with pytest.raises(ValueError, match="is not a file name of a portable set"):
        replace(manifest, files=(replace(manifest.files[0], name=name),)).encode()


def test_a_manifest_by_another_identity_is_refused(place: Path, travelled: Travelled) -> None:
    with ClientDir.create(place / "other", None, NOW) as other:
        path = place / "set" / "manifest.cbor"
        path.write_bytes(manifests.sign_manifest(other.identity, place / "set", NOW).encode())
    with pytest.raises(Unverified, match="belong to different identities"):
        taken_up(place)


def resigned(place: Path, travelled: Travelled) -> None:
    """Sign the manifest again, as an owner would who exported a manipulated state."""
    path = place / "set" / "manifest.cbor"
    path.write_bytes(manifests.sign_manifest(travelled.dir.identity, place / "set", NOW).encode())
    assert PortableManifest.decode(path.read_bytes()).id_sign == travelled.dir.identity.id_sign.public_key


def _foreign_receipt(ledger: Ledger) -> bytes:
    forged = receipts.sign(
        SigningKey.generate(),
        label=ledger.label,
        stream_seq=99,
        leaf_hash=bytes(32),
        mmr_root=bytes(32),
        hub_ts=NOW,
    )
    return forged.encode()


def _stray_receipt(ledger: Ledger) -> bytes:
    first: Receipt = ledger.receipts[0]
    return replace(first, label=bytes(32)).encode()


SPOILED: dict[str, tuple[str, Callable[[bytes, Travelled], bytes], str]] = {
    "a receipt no key of the hub signed": (
        "receipts.cborseq",
        lambda data, made: data + _foreign_receipt(made.ledgers[0]),
        "receipt",
    ),
    "a receipt of an unknown label": (
        "receipts.cborseq",
        lambda data, made: data + _stray_receipt(made.ledgers[0]),
        "which hub label",
    ),
    "a checkpoint with another root": (
        "checkpoints.cborseq",
        lambda data, made: replace(made.ledgers[0].checkpoint(), mmr_root=bytes(32)).encode(),
        "checkpoint",
    ),
    "a message that was altered": (
        "payloads.cborseq",
        lambda data, made: data[:-1] + bytes((data[-1] ^ 1,)),
        "msg",
    ),
    "labels whose hubs are swapped": (
        "sync_state.cborseq",
        lambda data, made: _swapped(data, made.ledgers[0].hub_id, made.ledgers[1].hub_id),
        "receipt",
    ),
    "a routing key too few": (
        "routing_secret.cborseq",
        lambda data, made: data[: len(data) // 2],
        "routing_secret.cborseq does not match",
    ),
    "another's routing key": (
        "routing_secret.cborseq",
        lambda data, made: data.replace(naming.routing_key(made.ledgers[0].hub_id), bytes(32)),
        "routing_secret.cborseq does not match the hubs",
    ),
    "a state row of a table that does not travel": (
        "state.cborseq",
        lambda data, made: data.replace(b"fgrants", b"flabels"),
        "not part of a portable set",
    ),
    "a token that was altered": (
        "cap_tokens.cborseq",
        lambda data, made: data[:-1] + bytes((data[-1] ^ 1,)),
        "cap_token",
    ),
}


def test_a_label_that_does_not_match_its_signed_head_is_rejected(place: Path, travelled: Travelled) -> None:
    first = travelled.ledgers[0]
    earlier = replace(first.state(), head=first.receipts[0].encode())
    path = place / "set" / "sync_state.cborseq"
    path.write_bytes(path.read_bytes().replace(first.state().encode(), earlier.encode()))
    resigned(place, travelled)
    assert_rejected(place, Unverified, match="does not match its signed head")


def test_a_receipt_of_an_unknown_hub_is_rejected(place: Path) -> None:
    made = Travelled(place / "client")
    with made.dir.state.tables.write() as rows:
        rows.delete(made.ledgers[1].hub_id, db=rows.db["hubs"])
    export_identity(made.dir, place / "set", NOW + DAY)
    assert_rejected(place, Unverified, match="it has no record of hub")


def test_a_label_with_only_pending_messages_is_exported(place: Path) -> None:
    ledger = Ledger()
    with ClientDir.create(place / "client", b"secret", NOW, cost=CHEAP) as client:
        writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, STREAM, now=NOW))
        put = messages(writer, 2)
        client.outbox.put(writer, put)
        export_identity(client, place / "set", NOW)
    with taken_up(place) as new:
        assert new.outbox.pending(ledger.hub_id, ledger.label) == tuple(put)
        assert new.state.label(ledger.hub_id, ledger.label) is None


def _swapped(data: bytes, one: bytes, two: bytes) -> bytes:
    return data.replace(one, bytes(32)).replace(two, one).replace(bytes(32), two)


@pytest.mark.parametrize("what", SPOILED)
def test_invalid_content_is_rejected_even_with_a_valid_manifest(place: Path, travelled: Travelled, what: str) -> None:
    name, spoil, match = SPOILED[what]
    path = place / "set" / name
    whole = path.read_bytes()
    path.write_bytes(spoil(whole, travelled))
    assert path.read_bytes() != whole
    resigned(place, travelled)
    assert_rejected(place, Unverified, Malformed, match=match)


def test_a_move_with_another_keystore_than_the_state_is_of_is_refused(place: Path, travelled: Travelled) -> None:
    secrets = replace(travelled.dir.keystore.secrets, client_seed=bytes(32))
    travelled.dir.keystore.update(lambda _: secrets)
    (place / "set" / "keystore.enc").write_bytes((place / "client" / "keystore.enc").read_bytes())
    resigned(place, travelled)
    with pytest.raises(Unverified, match="the client_id in use does not belong to the identity"):
        taken_up(place, moved=True)
    assert "elsewhere" not in names(place)


@pytest.mark.parametrize("last", Last)
def test_an_export_or_import_that_dies_at_any_call_leaves_nothing_or_all_of_it(
    place: Path, travelled: Travelled, last: Last
) -> None:
    def attempt(number: str, disk: FailingDisk) -> None:
        travelled.dir.disk = disk
        export_identity(travelled.dir, place / f"set {number}", NOW)
        import_identity(place / f"set {number}", place / f"new {number}", b"secret", NOW, disk=disk).close()

    whole = FailingDisk()
    attempt("whole", whole)
    for n in range(1, whole.calls + 1):
        with pytest.raises(Died):
            attempt(str(n), DyingDisk(n, last))
        if (place / f"new {n}").exists():
            ClientDir.open(place / f"new {n}", b"secret").close()
        elif (place / f"set {n}").exists():
            import_identity(place / f"set {n}", place / f"new {n}", b"secret", NOW).close()
        else:
            travelled.dir.disk = whole
            attempt(str(n), whole)
    left = [name for name in names(place) if name.startswith(".")]
    assert left == []


def test_an_import_on_a_full_disk_leaves_nothing(place: Path, travelled: Travelled) -> None:
    whole = FailingDisk()
    import_identity(place / "set", place / "whole", b"secret", NOW, disk=whole).close()
    for n in range(1, whole.calls - 3):
        with pytest.raises(Unavailable, match="No space left"):
            import_identity(place / "set", place / "elsewhere", b"secret", NOW, disk=FullDisk(n))
        assert names(place) == ["client", "set", "whole"]
