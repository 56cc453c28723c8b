"""Attachments are sealed with their message, and verified when they are downloaded."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.pair import STREAM, Pair, bodies, pair, read_all, send_all
from tests.client.test_sending import at_a_hub, granted, meet
from tests.hub.client import TOKEN, Hub, make_dir, running
from veen.client.message_attachments import ATTACHED_SCHEMA, AttachedBody, Attachment
from veen.client.sender import DEFAULT_SCHEMA, Draft
from veen.core import Limits, Malformed, Refused, Unavailable, Unverified, naming
from veen.core.retention import PRUNED, AttachmentTombstone, RetentionRequest, UploadRecord
from veen.hub.admission_rules import Admission
from veen.storage.paths import Folders


def files(place: Path, *sizes: int) -> list[Path]:
    made = []
    for number, size in enumerate(sizes):
        path = place / f"file {number}.bin"
        path.write_bytes(os.urandom(size))
        made.append(path)
    return made


@pytest.mark.parametrize("sizes", [(0,), (1,), (1 << 20,), (5, 0, 700_000), tuple(range(20))])
def test_an_attachment_is_downloaded_unchanged(place: Path, sizes: tuple[int, ...]) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        attached = files(place, *sizes)
        async with people.writer() as writer, people.reader() as reader:
            await writer.send(STREAM, b"see these", schema="letter.v1", attachments=attached)
            (entry,) = await read_all(reader)
            assert (entry.body, entry.schema) == (b"see these", naming.schema_id("letter.v1"))
            assert [part.name for part in entry.attachments] == [path.name for path in attached]
            assert [part.size for part in entry.attachments] == list(sizes)
            for index, path in enumerate(attached):
                assert await reader.attachment(entry, index) == path.read_bytes()

    at_a_hub(place, work)


def test_messages_around_one_with_attachments_keep_their_order(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        (file,) = files(place, 1000)
        async with people.writer() as writer, people.reader() as reader:
            sender = writer.sender(STREAM)
            drafts = [Draft(b"%d" % number, files=(file,) if number in (3, 4) else ()) for number in range(8)]
            sent = await asyncio.gather(*(sender.put(draft) for draft in drafts))
            assert [one.stream_seq for one in sent] == list(range(1, 9))
            entries = await read_all(reader)
            assert bodies(entries) == [b"%d" % number for number in range(8)]
            assert [len(entry.attachments) for entry in entries] == [0, 0, 0, 1, 1, 0, 0, 0]
            assert {entry.schema for entry in entries} == {DEFAULT_SCHEMA}

    at_a_hub(place, work)


def test_a_capability_permits_attachments(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        (file,) = files(place, 5000)
        async with people.writer(caps=[granted(hub, people)]) as writer, people.reader() as reader:
            await writer.send(STREAM, b"1", attachments=[file])
            (entry,) = await read_all(reader)
            assert await reader.attachment(entry, 0) == file.read_bytes()

    at_a_hub(place, work, admission=Admission.CAPABILITY)


def test_a_file_may_have_any_name(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        odd = Path(os.fsdecode(bytes(place) + b"/\xff\xfe \xe2\x82\xac"))
        odd.write_bytes(b"1")
        async with people.writer() as writer, people.reader() as reader:
            await writer.send(STREAM, b"1", attachments=[odd])
            (entry,) = await read_all(reader)
            assert entry.attachments[0].name == "\ufffd\ufffd €"

    at_a_hub(place, work)


def test_the_same_file_twice_is_sealed_twice(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        (file,) = files(place, 100)
        async with people.writer() as writer, people.reader() as reader:
            await writer.send(STREAM, b"1", attachments=[file, file])
            await writer.send(STREAM, b"2", attachments=[file])
            entries = await read_all(reader)
            coids = [part.coid for entry in entries for part in entry.attachments]
            assert len(set(coids)) == 3

    at_a_hub(place, work)


# Attachments changed by the hub.


def _stored(hub: Hub) -> list[Path]:
    return [path for path in hub.service.folders.attachments.rglob("*") if path.is_file()]


@pytest.mark.parametrize("damage", ["bit", "shorter", "longer", "another"])
def test_an_attachment_that_was_changed_is_refused(place: Path, damage: str) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await writer.send(STREAM, b"1", attachments=files(place, 500))
            (entry,) = await read_all(reader)
            # A hub that stores something else would list this coid.
            part = entry.attachments[0]
            assert entry.opened
            other = await _sealed_at(reader, part, damage)
            changed = replace(entry, attachments=(replace(part, coid=other),))
            with pytest.raises(Unverified, match="attachment"):
                await reader.attachment(changed, 0)

    async def _sealed_at(reader: object, part: Attachment, damage: str) -> bytes:
        """Upload other bytes under their own coid."""
        from veen.client.client import Client
        from veen.client.message_attachments import upload
        from veen.core.attachment import SealedAttachment
        from veen.core.hashing import h

        assert isinstance(reader, Client)
        sealed = await reader.session.link.get(f"/tooling/attachments/{part.coid.hex()}", 1 << 20)
        made = {
            "bit": bytes((sealed[0] ^ 1,)) + sealed[1:],
            "shorter": sealed[:-1],
            "longer": sealed + b"\0",
            "another": os.urandom(len(sealed)),
        }[damage]
        await upload(reader.session.link, SealedAttachment(h(made), made), bytes(32), {})
        return h(made)

    at_a_hub(place, work)


def test_a_pruned_attachment_is_not_damage_if_the_hub_signed_that_it_deleted_it(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await writer.send(STREAM, b"1", attachments=files(place, 500))
            (entry,) = await read_all(reader)
            label, coid = hub.label(STREAM), entry.attachments[0].coid
            folders = Folders(hub.data_dir)
            assert UploadRecord.decode(folders.upload(coid).read_bytes()).label == label
            erased = hub.post(
                "/tooling/retention/run",
                RetentionRequest(False, reason="request 3", coid=coid),
                authorization=f"Bearer {TOKEN}",
            )
            assert erased.status == 200
            with pytest.raises(Refused, match=r"attachment 0 .* was pruned by the hub on") as pruned:
                await reader.attachment(entry, 0)
            assert pruned.value.detail_enum == PRUNED
            tombstone = folders.attachment_tombstone(coid)
            stated = AttachmentTombstone.decode(tombstone.read_bytes())
            for forged in (replace(stated, pruned_at=stated.pruned_at + 1), replace(stated, coid=bytes(32))):
                tombstone.write_bytes(forged.encode())
                with pytest.raises(Unverified, match="attachment 0 was pruned, without proof"):
                    await reader.attachment(entry, 0)

    at_a_hub(place, work)


def test_an_attachment_the_hub_does_not_have_is_unavailable(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await writer.send(STREAM, b"1", attachments=files(place, 500))
            (entry,) = await read_all(reader)
            for path in _stored(hub):
                path.unlink()
            with pytest.raises(Unavailable, match="does not have attachment 0"):
                await reader.attachment(entry, 0)

    at_a_hub(place, work)


@pytest.mark.parametrize("index", [-1, 1])
def test_an_attachment_index_out_of_range_is_an_error(place: Path, index: int) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await writer.send(STREAM, b"1", attachments=files(place, 5))
            (entry,) = await read_all(reader)
            with pytest.raises(ValueError, match="attachment"):
                await reader.attachment(entry, index)

    at_a_hub(place, work)


# Errors of a writer.


def test_a_file_that_is_not_there_takes_no_place(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer:
            with pytest.raises(Unavailable, match="cannot be attached"):
                await writer.send(STREAM, b"1", attachments=[place / "nothing"])
            assert (await writer.send(STREAM, b"2")).receipt.stream_seq == 1

    at_a_hub(place, work)


def test_a_file_that_grew_takes_no_place(place: Path) -> None:
    limits = Limits(max_attachment_bytes=1000)

    async def work() -> None:
        async with people.writer() as writer:
            sender = writer.sender(STREAM)
            (file,) = files(place, 1000)
            future = sender.put(Draft(b"1", files=(file,)))
            file.write_bytes(bytes(1001))
            with pytest.raises(Refused, match="grew"):
                await future
            assert (await send_all(writer, b"2"))[0].stream_seq == 1

    with pair(place) as people, running(make_dir(place, limits=limits)) as hub:
        meet(people, hub)
        asyncio.run(work())


# The body that lists the attachments.


def test_any_attached_body_decodes_to_itself_or_not_at_all() -> None:
    made = AttachedBody((Attachment(bytes(32), 5, "a"),), DEFAULT_SCHEMA, b"body")
    encoded = made.encode()
    assert AttachedBody.decode(encoded) == made
    for at in range(len(encoded)):
        for flip in (1, 0x80):
            altered = encoded[:at] + bytes((encoded[at] ^ flip,)) + encoded[at + 1 :]
            try:
                assert AttachedBody.decode(altered).encode() == altered
            except Malformed:
                continue
    with pytest.raises(ValueError, match="attachments"):
        AttachedBody((), DEFAULT_SCHEMA, b"").encode()


def test_a_body_that_names_other_attachments_than_its_header_does_not_open(place: Path) -> None:
    """A writer that lists wrong attachments is detected before any download."""

    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            lie = AttachedBody((Attachment(bytes(32), 5, "a"),), DEFAULT_SCHEMA, b"body").encode()
            await writer.send(STREAM, lie, schema=ATTACHED_SCHEMA)
            await writer.send(STREAM, b"not one at all", schema=ATTACHED_SCHEMA)
            entries = await read_all(reader)
            assert bodies(entries) == [None, None]
            assert "has no att_root" in str(entries[0].fault)
            assert "attached body" in str(entries[1].fault)

    at_a_hub(place, work)
