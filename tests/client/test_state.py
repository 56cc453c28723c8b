"""The state of labels and hubs: it moves forward, atomically."""

import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.ledger import NOW, Ledger, message, messages
from veen.client import ClientDir, ClientState, LabelState, StateConflict, client_state
from veen.client.writer_keys import WriterRequest
from veen.core import Malformed, SigningKey, Unavailable, Unverified
from veen.core import receipt as receipts


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def sent(client: ClientDir, ledger: Ledger, count: int) -> None:
    """Put, accept and answer `count` messages."""
    writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=NOW))
    pending = messages(writer, count)
    client.outbox.put(writer, pending)
    ledger.answer(client.state, pending)


def test_an_unknown_label_has_no_state(client: ClientDir, ledger: Ledger) -> None:
    assert client.state.label(ledger.hub_id, ledger.label) is None
    assert client.state.labels() == ()
    assert client.state.receipt(ledger.hub_id, ledger.label, 1) is None
    assert client.state.checkpoint(ledger.hub_id, ledger.label) is None
    assert client.state.hub(ledger.hub_id) is None
    assert client.state.hub_of("http://hub") is None


def test_a_label_is_where_it_was_taken_to_also_after_reopening(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 5)
    client.close()
    with ClientDir.open(client.path) as again:
        assert again.state.label(ledger.hub_id, ledger.label) == ledger.state()
        assert again.state.labels() == ((ledger.hub_id, ledger.label, ledger.state()),)
        assert again.state.labels(bytes(32)) == ()
        for kept in ledger.receipts:
            assert again.state.receipt(ledger.hub_id, ledger.label, kept.stream_seq) == kept.encode()


def test_the_tip_of_a_label_goes_on_where_it_stopped(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 6)
    tree = ledger.state().tree()
    tree.append(b"\5" * 32)
    ledger.tree.append(b"\5" * 32)
    assert (tree.size, tree.root()) == (7, ledger.tree.root())


def test_a_label_does_not_go_back(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 2)
    earlier = ledger.state()
    sent(client, ledger, 2)
    with pytest.raises(ValueError, match="cannot go back from 4 to 2"):
        client.state.advance(ledger.hub_id, ledger.label, earlier, after=ledger.state())


def test_a_label_does_not_change_its_root_where_it_is(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 1)
    other = LabelState(ledger.state().profile_id, 1, b"\5" * 32, (b"\5" * 32,), b"")
    with pytest.raises(ValueError, match="cannot go back"):
        client.state.advance(ledger.hub_id, ledger.label, other, after=ledger.state())


def test_an_update_of_an_older_state_is_a_conflict(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 2)
    first = ledger.state()
    sent(client, ledger, 1)
    second = ledger.state()
    for after in (None, first, replace(second, head=b"x")):
        with pytest.raises(StateConflict, match="has 3 entries now"):
            client.state.advance(ledger.hub_id, ledger.label, second, after=after)
    assert client.state.label(ledger.hub_id, ledger.label) == second


def test_only_one_of_concurrent_updates_of_a_label_succeeds(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 1)
    before = ledger.state()
    outcomes: list[str] = []
    start = threading.Barrier(6)

    def move(number: int) -> None:
        new = replace(before, head=bytes((number,)))
        start.wait()
        try:
            client.state.advance(ledger.hub_id, ledger.label, new, after=before)
            outcomes.append("moved")
        except StateConflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=move, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict"] * 5 + ["moved"]


def test_a_receipt_for_a_place_already_passed_is_kept_without_moving(client: ClientDir, ledger: Ledger) -> None:
    writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=NOW))
    pending = messages(writer, 3)
    client.outbox.put(writer, pending)
    given = ledger.take_all(pending)
    here, place = ledger.state(), (ledger.hub_id, ledger.label)
    client.state.advance(*place, here, after=None, receipts=given[1:], done=[each.leaf_hash for each in pending[1:]])
    assert client.outbox.pending(*place) == (pending[0],)
    client.state.advance(*place, here, after=here, receipts=given[:1], done=[pending[0].leaf_hash])
    assert client.outbox.pending(*place) == ()
    assert client.state.receipt(*place, 1) == given[0].encode()


def test_a_message_leaves_the_outbox_only_with_its_receipt(client: ClientDir, ledger: Ledger) -> None:
    writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=NOW))
    pending = messages(writer, 2)
    client.outbox.put(writer, pending)
    given = ledger.take_all(pending)
    with pytest.raises(ValueError, match="only with its receipt"):
        client.state.advance(
            ledger.hub_id, ledger.label, ledger.state(), after=None, receipts=given[:1], done=[pending[1].leaf_hash]
        )
    assert client.outbox.pending(ledger.hub_id, ledger.label) == tuple(pending)


def test_a_second_receipt_for_a_place_is_refused_and_nothing_moves(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 2)
    before = ledger.state()
    lie = receipts.sign(
        ledger.key, label=ledger.label, stream_seq=1, leaf_hash=b"\6" * 32, mmr_root=b"\6" * 32, hub_ts=NOW
    )
    ledger.take(message(client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=NOW))).msg)
    with pytest.raises(Unverified, match="contradicts the stored one at 1"):
        client.state.advance(ledger.hub_id, ledger.label, ledger.state(), after=before, receipts=[lie])
    assert client.state.label(ledger.hub_id, ledger.label) == before
    assert client.state.receipt(ledger.hub_id, ledger.label, 1) == ledger.receipts[0].encode()


def test_the_ladder_takes_one_step_per_receipt_in_their_order(client: ClientDir, ledger: Ledger) -> None:
    rk = client.identity.first_rk(ledger.label)
    assert client.state.rk(ledger.hub_id, ledger.label) == rk
    writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=NOW))
    pending = messages(writer, 3)
    given = ledger.take_all(pending)
    client.state.advance(ledger.hub_id, ledger.label, ledger.state(), after=None, receipts=given[::-1])
    for stream_seq in (1, 2, 3):
        rk = client_state.step(rk, stream_seq)
    assert client.state.rk(ledger.hub_id, ledger.label) == rk
    # A receipt that is already stored does not advance the ladder.
    client.state.advance(ledger.hub_id, ledger.label, ledger.state(), after=ledger.state(), receipts=given)
    assert client.state.rk(ledger.hub_id, ledger.label) == rk


def test_the_files_contain_no_key_of_the_rekey_ladder(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 1)
    rk = client.state.rk(ledger.hub_id, ledger.label)
    client.close()
    files = b"".join(path.read_bytes() for path in (client.path / "state").iterdir())
    assert ledger.label in files
    assert rk not in files
    assert client.identity.first_rk(ledger.label) not in files


def test_a_rung_that_was_altered_or_moved_to_another_label_does_not_open(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 1)
    key, other = ledger.hub_id + ledger.label, ledger.hub_id + bytes(32)
    with client.state.tables.write() as rows:
        sealed = rows.get(key, db=rows.db["ladders"])
        assert sealed is not None
        rows.put(key, sealed[:-1] + bytes((sealed[-1] ^ 1,)), db=rows.db["ladders"])
        rows.put(other, sealed, db=rows.db["ladders"])
    for label in (ledger.label, bytes(32)):
        with pytest.raises(Unverified, match="rk"):
            client.state.rk(ledger.hub_id, label)


def test_starting_over_deletes_only_what_the_hub_signed(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 2)
    client.state.put_checkpoint(ledger.hub_id, ledger.checkpoint())
    other = Ledger()
    sent(client, other, 1)
    rk = client.state.rk(ledger.hub_id, ledger.label)
    dropped = client.state.forget(ledger.hub_id, ledger.label)
    assert dropped == (*(each.encode() for each in ledger.receipts), ledger.checkpoint().encode())
    assert client.state.label(ledger.hub_id, ledger.label) is None
    assert client.state.receipt(ledger.hub_id, ledger.label, 1) is None
    assert client.state.checkpoint(ledger.hub_id, ledger.label) is None
    assert client.state.rk(ledger.hub_id, ledger.label) == rk
    writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=NOW))
    assert writer.next_client_seq == 3
    assert client.state.label(other.hub_id, other.label) == other.state()


def test_the_checkpoint_that_reaches_furthest_is_given(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 1)
    first = ledger.checkpoint()
    sent(client, ledger, 3)
    second = ledger.checkpoint()
    client.state.put_checkpoint(ledger.hub_id, second)
    client.state.put_checkpoint(ledger.hub_id, first)
    assert client.state.checkpoint(ledger.hub_id, ledger.label) == second.encode()


def test_a_checkpoint_may_gain_witnesses_and_nothing_else(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 1)
    plain = ledger.checkpoint()
    client.state.put_checkpoint(ledger.hub_id, plain)
    witnessed = plain.witnessed(SigningKey.generate())
    client.state.put_checkpoint(ledger.hub_id, witnessed)
    assert client.state.checkpoint(ledger.hub_id, ledger.label) == witnessed.encode()
    for lie in (replace(plain, mmr_root=bytes(32)), replace(plain, epoch=9), replace(plain, label_prev=bytes(32))):
        with pytest.raises(Unverified, match="contradicts the stored one at 1"):
            client.state.put_checkpoint(ledger.hub_id, lie)
    assert client.state.checkpoint(ledger.hub_id, ledger.label) == witnessed.encode()


def test_the_record_and_url_of_a_hub_are_stored(client: ClientDir, ledger: Ledger) -> None:
    client.state.put_hub(ledger.hub_id, b"known")
    client.state.put_hub_of("https://hub.example:37411", ledger.hub_id)
    client.close()
    with ClientDir.open(client.path) as again:
        assert again.state.hub(ledger.hub_id) == b"known"
        assert again.state.hub_of("https://hub.example:37411") == ledger.hub_id
        assert again.state.hub_of("https://hub.example") is None


@pytest.mark.parametrize(
    ("size", "peaks"), [(1, ()), (1, (b"\1" * 32, b"\2" * 32)), (2, (b"\1" * 32, b"\2" * 32)), (3, (b"\1" * 32,))]
)
def test_peaks_that_are_not_those_of_the_size_are_no_state(size: int, peaks: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="cannot have"):
        LabelState(bytes(32), size, b"\1" * 32, peaks, b"").encode()


def test_peaks_that_do_not_give_the_root_are_no_state(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="do not match its root"):
        LabelState(bytes(32), 1, bytes(32), (b"\1" * 32,), b"").encode()


def test_a_row_that_was_damaged_is_not_taken_for_a_state(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 3)
    key = ledger.hub_id + ledger.label
    with client.state.tables.read() as rows:
        whole = rows.get(key, db=rows.db["labels"])
    assert whole is not None
    for damaged in (whole[:-1], whole + b"\0", whole.replace(ledger.state().root, bytes(32)), b""):
        with client.state.tables.write() as rows:
            rows.put(key, damaged, db=rows.db["labels"])
        with pytest.raises(Malformed, match="label state"):
            client.state.label(ledger.hub_id, ledger.label)


def test_a_state_of_another_format_is_not_opened(client: ClientDir) -> None:
    with client.state.tables.write() as rows:
        rows.put_number("format", 2)
    client.close()
    with pytest.raises(Malformed, match="unsupported format 2; this program supports 1"):
        ClientDir.open(client.path)


@pytest.mark.parametrize("keep", [0, 4_096, 10_000])
def test_a_state_file_cut_short_is_said_to_be_so(client: ClientDir, ledger: Ledger, keep: int) -> None:
    sent(client, ledger, 20)
    client.close()
    with (client.path / "state" / "data.mdb").open("r+b") as file:
        file.truncate(keep)
    with pytest.raises((Malformed, Unavailable), match="state"):
        ClientDir.open(client.path)


def test_a_state_file_without_its_last_pages_that_were_never_written_is_whole(
    client: ClientDir, ledger: Ledger
) -> None:
    """LMDB never writes a page that is allocated and freed in one transaction, so the file may end before it."""
    file = client.path / "state" / "data.mdb"
    blank = bytes(4096)
    with client.state.tables.write() as rows:
        for number in range(400):
            rows.put(b"u%d" % number, bytes(3000), db=rows.db["urls"])
        for number in range(400):
            rows.delete(b"u%d" % number, db=rows.db["urls"])
    sent(client, ledger, 1)
    client.close()
    data = file.read_bytes()
    while data.endswith(blank):
        data = data[: -len(blank)]
    file.write_bytes(data)
    with ClientDir.open(client.path) as again:
        assert again.state.label(ledger.hub_id, ledger.label) is not None
    assert file.stat().st_size % len(blank) == 0


def test_a_state_that_was_deleted_does_not_hand_out_its_places_again(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 1)
    client.close()
    for path in (client.path / "state").iterdir():
        path.unlink()
    with pytest.raises(Malformed, match="it contains no client_id"):
        ClientDir.open(client.path)


def test_a_state_opened_twice_in_one_process_is_said_to_be_so(client: ClientDir) -> None:
    with pytest.raises(Unavailable, match="already open"):
        ClientDir.open(client.path)


def test_a_full_map_is_an_error_and_changes_nothing(place: Path, client: ClientDir, ledger: Ledger) -> None:
    folder = place / "small"
    folder.mkdir()
    state = ClientState(folder, client.identity, map_bytes=1 << 19)
    with pytest.raises(Unavailable, match="MAP_FULL"):
        _fill(state)
    numbers = range(1, 100)
    kept = [number for number in numbers if state.hub(number.to_bytes(32, "big")) is not None]
    assert 0 < len(kept) < len(numbers)
    assert kept == list(numbers[: len(kept)])
    assert {state.hub(number.to_bytes(32, "big")) for number in kept} == {bytes(20_000)}
    state.close()


def _fill(state: ClientState) -> None:
    for number in range(1, 100):
        state.put_hub(number.to_bytes(32, "big"), bytes(20_000))


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """Limit the size of every file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing_that_was_there(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 3)
    before = ledger.state()
    writer = client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=NOW))
    pending = [message(writer, place, body=bytes(50_000)) for place in range(8)]
    size = (client.path / "state" / "data.mdb").stat().st_size
    with full_disk(size), pytest.raises(Unavailable, match="state"):
        client.outbox.put(writer, pending)
    assert client.state.label(ledger.hub_id, ledger.label) == before
    assert client.outbox.pending(ledger.hub_id, ledger.label) == ()
    # With space again, the same places are still free: nothing of the attempt was sent.
    client.outbox.put(writer, pending)
    ledger.answer(client.state, pending)
    client.close()
    with ClientDir.open(client.path) as again:
        assert again.state.label(ledger.hub_id, ledger.label) == ledger.state()


def test_another_process_sees_what_was_committed(client: ClientDir, ledger: Ledger) -> None:
    sent(client, ledger, 4)
    program = (
        "import sys; from pathlib import Path; from veen.client import ClientDir\n"
        "with ClientDir.open(Path(sys.argv[1])) as c: print([state.size for _, _, state in c.state.labels()])"
    )
    seen = subprocess.run([sys.executable, "-c", program, str(client.path)], capture_output=True, text=True, check=True)
    assert seen.stdout == "[4]\n"
