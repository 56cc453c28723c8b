"""Wrong bits, missing rows and truncated files in the index: the hub decides nothing by them.

Each test damages the index of a stopped hub. Acknowledged entries stay, nothing contradicts them, and after at most
one crash the hub serves again, with an index that fsck reports as clean.
"""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

import pytest

from tests.hub.client import START, Clock, Hub, Reply, Writer, make_dir, running
from tests.hub.realms import REALM, Admin
from tests.hub.test_running import broken, check_kept, check_no_receipt, in_background
from tests.storage import hubs
from veen.core import Limits, Malformed, Rate, Receipt, SigningKey, naming
from veen.hub.admission_rules import Admission
from veen.storage import fsck, rebuild
from veen.storage.directory_reader import LogReader
from veen.storage.index import PAIR, Index
from veen.storage.paths import Folders

OPEN = {"admission": Admission.OPEN}
Change = Callable[[bytes, bytes], tuple[bytes, bytes] | None]


def gone(key: bytes, row: bytes) -> None:
    """Delete the row."""


def flipped(at: int, bit: int = 0) -> Change:
    """Flip one bit of the row."""

    def change(key: bytes, row: bytes) -> tuple[bytes, bytes]:
        data = bytearray(row)
        data[at] ^= 1 << bit
        return key, bytes(data)

    return change


def elsewhere(key: bytes, row: bytes) -> tuple[bytes, bytes]:
    """Flip the last bit of the key, so that the row keeps its position."""
    return key[:-1] + bytes([key[-1] ^ 1]), row


def spoil(data_dir: Path, table: str, change: Change, key: bytes | None = None) -> None:
    """Change one row, or the first, bypassing all checks."""
    index = Index(data_dir / "index")
    with index._env.begin(write=True) as txn, txn.cursor(index._dbs[table]) as cursor:
        assert cursor.first() if key is None else cursor.set_key(key)
        found, row = bytes(cursor.key()), bytes(cursor.value())
        cursor.delete()
        changed = change(found, row)
        if changed:
            txn.put(*changed, db=index._dbs[table])
    index.close()


def check_sound(data_dir: Path) -> None:
    assert fsck.check(data_dir, isolated=False).findings == []


def ends_hub(data_dir: Path, ask: Callable[[Hub], Reply], admission: Admission = Admission.OPEN) -> None:
    """The hub stops without an answer because of its index, and the next start does not use that index."""
    hub = Hub(data_dir, settings={"admission": admission}).start()
    with in_background() as pool:
        unanswered = pool.submit(ask, hub)
        try:
            ended = pool.submit(broken, hub)
            either: list[Future[Any]] = [unanswered, ended]
            wait(either, return_when=FIRST_COMPLETED)
            assert not unanswered.done(), unanswered.result()
            error = ended.result()
        finally:
            hub.abandon()
        assert isinstance(error, Malformed)
        assert error.what == "index", error
        check_no_receipt(unanswered)
    assert rebuild.fault_recorded(Folders(data_dir))


def written(tmp_path: Path, limits: Limits | None = None) -> tuple[Path, Writer, list[Receipt]]:
    """A hub that stopped cleanly after nine messages of one client."""
    data_dir = make_dir(tmp_path, limits=limits)
    with running(data_dir) as hub:
        writer = hub.writer()
        return data_dir, writer, writer.send_many(9)


def check_goes_on(data_dir: Path, writer: Writer, told: list[Receipt]) -> None:
    """Acknowledged entries exist, used sequence numbers stay used, and new messages are accepted."""
    with running(data_dir) as hub:
        writer.hub = hub
        check_kept(hub, writer.label, told)
        for used in (1, writer.client_seq):
            again = writer.message(b"another", client_seq=used)
            assert hub.submit(again).refusal()[3] == "DUPLICATE"
        told.append(writer.send(b"more"))
        assert told[-1].hub_ts == int(hub.clock())
        check_kept(hub, writer.label, told)
    check_sound(data_dir)


# Rows that a start relies on.


def behind(tmp_path: Path) -> tuple[Path, bytes, list[Receipt]]:
    """A hub that was killed with five of eight entries in the log; the others are only in the journal."""
    data_dir = make_dir(tmp_path)
    hub = hubs.Hub(data_dir, clock=hubs.Clock(START))
    client, label = hubs.Client("ann", hub.rules), hubs.label_of(hub.rules, "s")
    told = []
    for number in range(8):
        told += [Receipt.decode(one) for one in hubs.receipts(hub.submit([client.message(label)]))]
        if number == 4:
            hub.catch_up()
    hub.abandon()
    return data_dir, label, told


NUMBERS = {"low": flipped(7), "higher": flipped(7, 3), "high": flipped(3, 1), "gone": gone}


@pytest.mark.parametrize("change", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("name", ["applied", "hub_ts", "format", "sum"])
def test_no_wrong_number_costs_an_entry_or_the_time(tmp_path: Path, name: str, change: Change) -> None:
    data_dir, label, told = behind(tmp_path)
    spoil(data_dir, "meta", change, name.encode())
    with running(data_dir) as hub:
        check_kept(hub, label, told)
        writer = Writer(hub, label, hubs.key("ann"))
        for used in (5, 6, 8):
            assert hub.submit(writer.message(b"another", client_seq=used)).refusal()[3] == "DUPLICATE"
        told.append(writer.send(client_seq=9))
        assert (told[-1].stream_seq, told[-1].hub_ts) == (9, START)
    with running(data_dir) as hub:
        check_kept(hub, label, told)
    check_sound(data_dir)


@pytest.mark.parametrize("applied", [6, 8, 13, 1 << 60])
def test_a_group_that_the_heads_do_not_have_is_never_skipped(tmp_path: Path, applied: int) -> None:
    """Whichever row claims it, with any sum."""
    data_dir, label, told = behind(tmp_path)
    index = Index(data_dir / "index")
    with index.write() as rows:
        assert rows.number("applied") == 5
        rows.put_number("applied", applied)
        assert rows._change
        rows.commit()
    with index.read() as rows:
        assert rows.sum_matches()
    index.close()
    with running(data_dir) as hub:
        check_kept(hub, label, told)
    check_sound(data_dir)


def test_fsck_makes_an_index_with_a_wrong_number_again(tmp_path: Path) -> None:
    data_dir, label, told = behind(tmp_path)
    spoil(data_dir, "meta", flipped(7, 3), b"applied")
    report = fsck.check(data_dir, isolated=False)
    assert report.verdict is fsck.FsckVerdict.REPAIRABLE
    assert report.findings[0].what == "the index is unusable: index: its sum does not match its rows"
    assert fsck.repair(data_dir, isolated=False).verdict is fsck.FsckVerdict.CLEAN
    with running(data_dir) as hub:
        check_kept(hub, label, told)


# Cursors.

CURSORS = {
    "gone": gone,
    "one client_seq for another": flipped(7, 3),
    "one prev_ack for another": flipped(15, 0),
    "another client": elsewhere,
    "short": lambda key, row: (key, row[:-1]),
    "empty": lambda key, row: (key, b""),
}


@pytest.mark.parametrize("change", CURSORS.values(), ids=CURSORS)
def test_a_hub_takes_nothing_by_a_cursor_that_was_not_written(tmp_path: Path, change: Change) -> None:
    data_dir, writer, told = written(tmp_path)
    spoil(data_dir, "cursors", change, writer.key.public_key + writer.label)
    ends_hub(data_dir, lambda hub: hub.submit(Writer(hub, writer.label, writer.key).message(b"again")))
    check_goes_on(data_dir, writer, told)


def test_a_cursor_is_that_of_the_clients_last_entry(tmp_path: Path) -> None:
    """Here the row has a valid checksum, but is outdated."""
    data_dir, writer, told = written(tmp_path)
    index = Index(data_dir / "index")
    with index.write() as rows:
        rows.put_cursors([(writer.key.public_key + writer.label, PAIR.pack(1, 0))])
        rows.commit()
    index.close()
    ends_hub(data_dir, lambda hub: hub.submit(Writer(hub, writer.label, writer.key, client_seq=1).message(b"again")))
    check_goes_on(data_dir, writer, told)


def test_a_wrong_cursor_of_one_client_is_not_met_by_another(tmp_path: Path) -> None:
    data_dir, writer, told = written(tmp_path)
    spoil(data_dir, "cursors", flipped(0), writer.key.public_key + writer.label)
    with running(data_dir) as hub:
        told.append(hub.writer().send())
        check_kept(hub, writer.label, told)
    assert not rebuild.fault_recorded(Folders(data_dir))
    assert fsck.repair(data_dir, isolated=False).verdict is fsck.FsckVerdict.CLEAN
    check_goes_on(data_dir, writer, told)


@pytest.mark.parametrize("change", [gone, flipped(15)], ids=["gone", "of another entry"])
def test_a_clients_age_is_never_that_of_another_entry(tmp_path: Path, change: Change) -> None:
    data_dir = make_dir(tmp_path, limits=Limits(max_client_id_lifetime_sec=100))
    with running(data_dir) as hub:
        first, writer = hub.writer(), hub.writer()
        told = [writer.send(), writer.send(), first.send()]
    spoil(data_dir, "by_client", change, writer.key.public_key + writer.label)
    ends_hub(data_dir, lambda hub: hub.submit(Writer(hub, writer.label, writer.key, client_seq=2).message()))
    check_goes_on(data_dir, writer, told)


# Capabilities, rates, streams, the realm.

ROWS = {"row": flipped(3), "key": elsewhere, "seal": flipped(-1)}


@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("table", ["caps", "buckets"])
def test_a_damaged_row_grants_no_permission(tmp_path: Path, table: str, change: Change) -> None:
    data_dir = make_dir(tmp_path)
    clock = Clock()
    with running(data_dir, clock, admission=Admission.CAPABILITY) as hub:
        writer = hub.granted("s", rate=Rate(1, 3))
        told = writer.send_many(3)
    spoil(data_dir, table, change)

    def send(hub: Hub) -> Reply:
        return hub.submit(Writer(hub, writer.label, writer.key, writer.auth_ref, 3).message())

    ends_hub(data_dir, send, Admission.CAPABILITY)
    with running(data_dir, clock, admission=Admission.CAPABILITY) as hub:
        writer.hub = hub
        check_kept(hub, writer.label, told)
        assert hub.submit(writer.message()).refusal()[3] == "CAP_RATE"
        clock.now += 1
        told.append(writer.send())
        check_kept(hub, writer.label, told)
    check_sound(data_dir)


@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
def test_a_stream_is_never_registered_by_a_row_that_was_not_written(tmp_path: Path, change: Change) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        receipt = hub.register(naming.stream_id("s"))
    spoil(data_dir, "streams", change)

    def register(hub: Hub) -> Reply:
        hub.register(naming.stream_id("s"))
        raise AssertionError("it was answered")

    ends_hub(data_dir, register)
    with running(data_dir) as hub:
        assert hub.register(naming.stream_id("s")) == receipt
    check_sound(data_dir)


@pytest.mark.parametrize("change", [gone, *ROWS.values()], ids=["gone", *ROWS])
def test_a_revocation_survives_a_damaged_index(tmp_path: Path, change: Change) -> None:
    data_dir = make_dir(tmp_path, realm_id=REALM)
    key = SigningKey.generate()
    with running(data_dir) as hub:
        writer = hub.writer(key=key)
        told = [writer.send()]
        Admin(hub).revokes_key(key)
    spoil(data_dir, "admin", change)
    with running(data_dir) as hub:
        writer.hub = hub
        assert hub.submit(writer.message()).refusal()[3] == "AUTH_REF"
        check_kept(hub, writer.label, told)
    check_sound(data_dir)


def test_a_reader_in_another_process_gets_the_error_and_changes_nothing(tmp_path: Path) -> None:
    data_dir, writer, _ = written(tmp_path)
    spoil(data_dir, "cursors", flipped(7, 3))
    with LogReader(data_dir) as reader, reader.index().read() as rows:
        with pytest.raises(Malformed, match="index: the checksum of a row of cursors does not match"):
            rows.client_cursor(writer.label, writer.key.public_key)
        assert len(list(reader.entries(writer.label, 1, 9))) == 9
    assert not rebuild.fault_recorded(Folders(data_dir))


# Node files.


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-32])


def spoiled(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("damage", [Path.unlink, cut, spoiled], ids=["missing", "short", "another peak"])
def test_a_node_file_that_does_not_lead_to_its_head_ends_a_hub_once(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    data_dir, writer, told = written(tmp_path)
    damage(Folders(data_dir).node_file(writer.label))

    def send(hub: Hub) -> Reply:
        writer.hub = hub
        return hub.submit(writer.message(b"next"))

    ends_hub(data_dir, send)
    check_goes_on(data_dir, writer, told)


@pytest.mark.parametrize("damage", [Path.unlink, cut], ids=["missing", "short"])
def test_a_node_file_that_goes_while_the_hub_runs_costs_nothing(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    data_dir, writer, told = written(tmp_path)
    hub = Hub(data_dir, settings=OPEN).start()
    writer.hub = hub
    hub.do(_tree(hub, writer.label))
    damage(Folders(data_dir).node_file(writer.label))
    told.append(writer.send(b"acknowledged"))
    error = broken(hub)
    assert isinstance(error, Malformed)
    assert "but the index lists" in str(error)
    hub.abandon()
    assert rebuild.fault_recorded(Folders(data_dir))
    check_goes_on(data_dir, writer, told)


async def _tree(hub: Hub, label: bytes) -> None:
    """Make the hub read the label's tree."""
    hub.service.sequencer.state.tree(label)


def test_more_nodes_than_the_head_has_are_what_a_crash_left(tmp_path: Path) -> None:
    data_dir, writer, told = written(tmp_path)
    path = Folders(data_dir).node_file(writer.label)
    path.write_bytes(path.read_bytes() + bytes(64))
    check_goes_on(data_dir, writer, told)
