"""Attachments of a message: named in its body, sealed one by one, kept by the hub under the hash of what was sealed.

A body that has attachments is an `AttachedBody`, under a schema of its own, which says what schema the body inside is
of. So no other schema needs to know of attachments, and its bodies mean what they always meant. Spec §4.6.
"""

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from veen.client.transport import HubLink
from veen.core import (
    Limits,
    Malformed,
    Opened,
    Refused,
    Sealer,
    SigningKey,
    Unavailable,
    Unverified,
    attachment,
    naming,
)
from veen.core import upload_proof as leaves
from veen.core.admission import BY_DETAIL
from veen.core.aead import TAG_BYTES
from veen.core.attachment import SealedAttachment
from veen.core.cbor import Bstr, Bytes, ListOf, Map, Nested, Text, Uint, VersionField, Wire
from veen.core.limits import MAX_ATTACHMENT_BYTES, MAX_ATTACHMENTS, MAX_BODY_BYTES, MAX_TEXT_BYTES

ATTACHED_SCHEMA = naming.schema_id("veen.attached.v1")
_PIECE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Attachment(Wire):
    """What a message says of one of its attachments."""

    coid: bytes
    size: int
    name: str

    LAYOUT: ClassVar = Map(
        "attachment",
        {1: Bstr("coid"), 2: Uint("size", most=MAX_ATTACHMENT_BYTES), 3: Text("name", MAX_TEXT_BYTES)},
    )


@dataclass(frozen=True, slots=True)
class AttachedBody(Wire):
    """A body with attachments: theirs first, then the schema and the body they were attached to."""

    attachments: tuple[Attachment, ...]
    schema: bytes
    body: bytes

    LAYOUT: ClassVar = Map(
        "attached body",
        {
            1: VersionField(),
            2: ListOf("attachments", Nested("attachment", Attachment), most=MAX_ATTACHMENTS, least=1),
            3: Bstr("schema"),
            4: Bytes("body", MAX_BODY_BYTES),
        },
    )


def unwrap(opened: Opened, limits: Limits) -> tuple[bytes, bytes, tuple[Attachment, ...]]:
    """`(schema, body, attachments)` of a payload, and whether the header commits to just these."""
    header = opened.header
    if header.schema != ATTACHED_SCHEMA:
        return header.schema, opened.body, ()
    said = AttachedBody.decode(opened.body)
    sizes = [part.size for part in said.attachments]
    attachment.check(header, sizes, [part.coid for part in said.attachments], sizes, limits)
    return said.schema, said.body, said.attachments


def name_of(path: Path) -> str:
    """A file's name as others can read it, whatever bytes it is made of."""
    return os.fsencode(path.name).decode(errors="replace").encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def check_files(files: Sequence[Path], limits: Limits) -> tuple[int, ...]:
    """The sizes of what is to be attached, refused here where the hub would refuse it."""
    sizes = []
    for path in files:
        try:
            sizes.append(path.stat().st_size)
        except OSError as error:
            raise Unavailable(f"{path} cannot be attached: {error.strerror}") from None
    try:
        attachment.check_sizes(sizes, limits)
    except Malformed as error:
        raise BY_DETAIL["SIZE_PREFILTER"].refused(error.reason) from None
    return tuple(sizes)


def seal_file(message: Sealer, path: Path, limits: Limits) -> tuple[Attachment, SealedAttachment]:
    """The next attachment of a message, from a file as it is now. One at a time is in memory."""
    try:
        with path.open("rb") as file:
            content = file.read(limits.max_attachment_bytes + 1)
    except OSError as error:
        raise Unavailable(f"{path} cannot be attached: {error.strerror}") from None
    if len(content) > limits.max_attachment_bytes:
        raise BY_DETAIL["SIZE_PREFILTER"].refused(f"{path} grew beyond {limits.max_attachment_bytes} bytes")
    sealed = attachment.seal(message, content)
    return Attachment(sealed.coid, len(content), name_of(path)), sealed


async def upload(link: HubLink, sealed: SealedAttachment, headers: dict[str, str]) -> None:
    """Give it to the hub. The same again is no harm: its address is the hash of what it is."""

    async def pieces() -> AsyncIterator[bytes]:
        view = memoryview(sealed.sealed)
        for start in range(0, len(view), _PIECE_BYTES):
            yield bytes(view[start : start + _PIECE_BYTES])

    await link.put(f"/tooling/attachments/{sealed.coid.hex()}", pieces, len(sealed.sealed), headers)


async def download(link: HubLink, opened: Opened, index: int, part: Attachment) -> bytes:
    """The plaintext of an attachment, which is what the message committed to or nothing."""
    path = f"/tooling/attachments/{part.coid.hex()}"
    try:
        sealed = await link.get(path, part.size + TAG_BYTES)
    except Malformed as error:
        raise Unverified("attachment", f"attachment {index} is not the one its coid names: {error.reason}") from None
    except Refused as refused:
        if refused.code == "E.NOT_FOUND":
            raise Unavailable(f"the hub does not have attachment {index}, {part.name!r}") from None
        raise
    content = attachment.open_sealed(opened, index, part.coid, sealed)
    if len(content) != part.size:
        raise Unverified("attachment", f"attachment {index} has {len(content)} bytes, and {part.size} were said")
    return content


def leave(
    key: SigningKey, hub_id: bytes, auth_ref: bytes | None, sealed: SealedAttachment, hub_ts: int
) -> dict[str, str]:
    """What shows that the holder of a capability brings this; nothing where the hub asks for none."""
    if auth_ref is None:
        return {}
    size = len(sealed.sealed)
    proof = leaves.sign(key, hub_id=hub_id, coid=sealed.coid, auth_ref=auth_ref, size=size, made_at=hub_ts)
    return {"authorization": proof.header()}
