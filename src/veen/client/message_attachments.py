"""Attachments of a message: listed in its body, sealed separately, stored by the hub under the hash of their bytes.

A body with attachments is an `AttachedBody` with its own schema, which names the schema of the inner body. So other
schemas need not know about attachments, and their bodies keep their meaning. Spec §4.6.
"""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated

from veen.client.contradiction import shown_time
from veen.client.transport import HubLink
from veen.core import (
    HubIdentity,
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
from veen.core.admission import BY_DETAIL
from veen.core.attachment import SealedAttachment
from veen.core.cbor import Bstr, Bytes, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.hpke import TAG_BYTES
from veen.core.limits import MAX_ATTACHMENT_BYTES, MAX_ATTACHMENTS, MAX_BODY_BYTES, MAX_TEXT_BYTES
from veen.core.retention import PRUNED, AttachmentTombstone

ATTACHED_SCHEMA = naming.schema_id("veen.attached.v1")
_MOST_ERROR_BYTES = 1 << 14  # an error with a tombstone is longer than a small attachment
_PIECE_BYTES = 1 << 18


@int_map("attachment")
class Attachment(Wire):
    """The entry of an attachment in the body of its message."""

    coid: Annotated[bytes, Bstr()]
    size: Annotated[int, Uint(most=MAX_ATTACHMENT_BYTES)]
    name: Annotated[str, Text(MAX_TEXT_BYTES)]


@int_map("attached body", VersionField())
class AttachedBody(Wire):
    """A body with attachments: their list, then the schema and the body that they are attached to."""

    attachments: Annotated[
        tuple[Attachment, ...], ListOf(Nested(Attachment, name="attachment"), most=MAX_ATTACHMENTS, least=1)
    ]
    schema: Annotated[bytes, Bstr()]
    body: Annotated[bytes, Bytes(MAX_BODY_BYTES)]


def unwrap(opened: Opened, limits: Limits) -> tuple[bytes, bytes, tuple[Attachment, ...]]:
    """`(schema, body, attachments)` of a payload. Raises unless the header commits to these attachments."""
    header = opened.header
    if header.schema != ATTACHED_SCHEMA:
        return header.schema, opened.body, ()
    wrapped = AttachedBody.decode(opened.body)
    sizes = [part.size for part in wrapped.attachments]
    attachment.check(header, sizes, [part.coid for part in wrapped.attachments], sizes, limits)
    return wrapped.schema, wrapped.body, wrapped.attachments


def name_of(path: Path) -> str:
    """A file's name as valid text, whatever bytes it consists of."""
    return os.fsencode(path.name).decode(errors="replace").encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def check_files(files: Sequence[Path], limits: Limits) -> tuple[int, ...]:
    """The sizes of the files. Raises `Refused` for sizes that the hub would reject."""
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
    """Seal a file as the next attachment of a message. Only one attachment is in memory at a time."""
    try:
        with path.open("rb") as file:
            content = file.read(limits.max_attachment_bytes + 1)
    except OSError as error:
        raise Unavailable(f"{path} cannot be attached: {error.strerror}") from None
    if len(content) > limits.max_attachment_bytes:
        raise BY_DETAIL["SIZE_PREFILTER"].refused(f"{path} grew beyond {limits.max_attachment_bytes} bytes")
    sealed = attachment.seal(message, content)
    return Attachment(sealed.coid, len(content), name_of(path)), sealed


async def upload(link: HubLink, sealed: SealedAttachment, label: bytes, headers: dict[str, str]) -> None:
    """Upload an attachment of a message for a label, whose retention policy it then follows.

    Repeating it is harmless, because its address is the hash of its bytes.
    """

    async def pieces() -> AsyncIterator[bytes]:
        view = memoryview(sealed.sealed)
        for start in range(0, len(view), _PIECE_BYTES):
            yield bytes(view[start : start + _PIECE_BYTES])

    path = f"/tooling/attachments/{sealed.coid.hex()}?label={label.hex()}"
    await link.put(path, pieces, len(sealed.sealed), headers)


async def download(link: HubLink, identity: HubIdentity, opened: Opened, index: int, part: Attachment) -> bytes:
    """Download and open an attachment. Raises unless it is the one to which the message commits."""
    path = f"/tooling/attachments/{part.coid.hex()}"
    try:
        sealed = await link.get(path, max(part.size + TAG_BYTES, _MOST_ERROR_BYTES))
    except Malformed as error:
        raise Unverified("attachment", f"attachment {index} does not match its coid: {error.reason}") from None
    except Refused as refused:
        if refused.detail_enum == PRUNED:
            raise _pruned(refused, identity, index, part) from None
        if refused.code == "E.NOT_FOUND":
            raise Unavailable(f"the hub does not have attachment {index} ({part.name!r})") from None
        raise
    content = attachment.open_sealed(opened, index, part.coid, sealed)
    if len(content) != part.size:
        raise Unverified("attachment", f"it has {len(content)} bytes, but the message declares {part.size}")
    return content


def _pruned(refused: Refused, identity: HubIdentity, index: int, part: Attachment) -> Refused:
    """The error for an attachment that the hub says it pruned. Raises `Unverified` if the hub did not sign that."""
    try:
        tombstone = AttachmentTombstone.decode(bytes.fromhex(str(refused.detail.get("tombstone", ""))))
        tombstone.verify(identity, part.coid)
    except (ValueError, Malformed, Unverified) as error:
        what = f"the hub says that attachment {index} was pruned, without proof: {error}"
        raise Unverified("attachment", what) from None
    when = shown_time(tombstone.pruned_at)
    text = f"attachment {index} ({part.name!r}) was pruned by the hub on {when}"
    return Refused("E.NOT_FOUND", text, detail_enum=PRUNED)


def upload_headers(
    key: SigningKey, hub_id: bytes, label: bytes, auth_ref: bytes | None, sealed: SealedAttachment, hub_ts: int
) -> dict[str, str]:
    """The HTTP headers that authorize an upload; none if the message needs no capability."""
    if auth_ref is None:
        return {}
    size = len(sealed.sealed)
    proof = attachment.sign_upload(
        key, hub_id=hub_id, coid=sealed.coid, auth_ref=auth_ref, size=size, made_at=hub_ts, label=label
    )
    return {"authorization": proof.header()}
