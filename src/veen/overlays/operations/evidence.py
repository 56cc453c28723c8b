"""What is known beside the log, as a JSON file: bytes are lowercase hex, and every name may be left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from veen.core import CapToken, Malformed, Receipt, jsonform
from veen.core.cbor import Bstr, Bytes, Kind, ListOf, Nested, Uint, Wire
from veen.core.limits import MAX_BODY_BYTES, MAX_MSG_BYTES
from veen.overlays.fields import body
from veen.overlays.operations.operation import text
from veen.overlays.operations.world import (
    Access,
    Capability,
    Decision,
    Effect,
    Place,
    Source,
    Speakers,
    Survivorship,
    Taken,
    World,
)


def _rows(name: str, item: Kind) -> ListOf:
    return ListOf(name, item, most=MAX_BODY_BYTES, optional=True)


@dataclass(frozen=True, slots=True)
class KnownCapability(Wire):
    """A capability in CBOR, when its hub logged it, and from when on it was revoked."""

    token: bytes
    issued_at: int | None = None
    revoked_at: int | None = None

    LAYOUT: ClassVar = body(
        "capability",
        Bytes("token", MAX_MSG_BYTES),
        Uint("issued_at", optional=True),
        Uint("revoked_at", optional=True),
    )


@dataclass(frozen=True, slots=True)
class KnownReceipt(Wire):
    """A receipt of another hub in CBOR, and the key that signed it."""

    hub_identifier: str
    hub_pk: bytes
    receipt: bytes

    LAYOUT: ClassVar = body("source", text("hub_identifier"), Bstr("hub_pk"), Bytes("receipt", MAX_MSG_BYTES))


@dataclass(frozen=True, slots=True)
class Speaker(Wire):
    """A client that speaks for an identity."""

    identity: bytes
    client_id: bytes

    LAYOUT: ClassVar = body("speaker", Bstr("identity"), Bstr("client_id"))


@dataclass(frozen=True, slots=True)
class Evidence(Wire):
    """The file."""

    speakers: tuple[Speaker, ...] | None = None
    processed: tuple[Place, ...] | None = None
    effects: tuple[Effect, ...] | None = None
    granters: tuple[bytes, ...] | None = None
    bootstrapped: tuple[bytes, ...] | None = None
    capabilities: tuple[KnownCapability, ...] | None = None
    decisions: tuple[Decision, ...] | None = None
    survivorship: str | None = None
    taken: tuple[Taken, ...] | None = None
    executors: tuple[bytes, ...] | None = None
    accesses: tuple[Access, ...] | None = None
    regulated: tuple[str, ...] | None = None
    sources: tuple[KnownReceipt, ...] | None = None

    LAYOUT: ClassVar = body(
        "evidence",
        _rows("speakers", Nested("speaker", Speaker)),
        _rows("processed", Nested("place", Place)),
        _rows("effects", Nested("effect", Effect)),
        _rows("granters", Bstr("granter")),
        _rows("bootstrapped", Bstr("auth_ref")),
        _rows("capabilities", Nested("capability", KnownCapability)),
        _rows("decisions", Nested("decision", Decision)),
        text("survivorship", optional=True),
        _rows("taken", Nested("taken", Taken)),
        _rows("executors", Bstr("executor")),
        _rows("accesses", Nested("access", Access)),
        _rows("regulated", text("resource_class")),
        _rows("sources", Nested("source", KnownReceipt)),
    )

    def flaw(self) -> str | None:
        known = self.survivorship is None or self.survivorship in Survivorship.__members__.values()
        return None if known else f"survivorship is {' or '.join(Survivorship)}"


def read(data: bytes, stream_id: bytes | None = None) -> World:
    """The world that a file tells of. Raises `Malformed`, and `Unverified` where a receipt is not its hub's."""
    found = jsonform.decode(Evidence, data)
    as_they_are = ("processed", "effects", "decisions", "taken", "accesses")
    sets = ("granters", "bootstrapped", "executors", "regulated")
    given: dict[str, Any] = {name: getattr(found, name) for name in as_they_are}
    given |= {name: None if (one := getattr(found, name)) is None else frozenset(one) for name in sets}
    if found.survivorship is not None:
        given["survivorship"] = Survivorship(found.survivorship)
    held = [Capability(CapToken.decode(one.token), one.issued_at, one.revoked_at) for one in found.capabilities or ()]
    given["capabilities"] = {one.token.auth_ref(): one for one in held}
    return World(stream_id, _speakers(found.speakers), sources=_sources(found.sources or ()), **given)


def _speakers(listed: tuple[Speaker, ...] | None) -> Speakers | None:
    if listed is None:
        return None
    identities = dict.fromkeys(one.identity for one in listed)
    return {named: frozenset(one.client_id for one in listed if one.identity == named) for named in identities}


def _sources(listed: tuple[KnownReceipt, ...]) -> Mapping[Source, Receipt]:
    sources: dict[Source, Receipt] = {}
    for one in listed:
        receipt = Receipt.decode(one.receipt)
        receipt.verify_signature(one.hub_pk)
        source = Source(one.hub_identifier, receipt.label, receipt.stream_seq)
        if sources.setdefault(source, receipt) != receipt:
            raise Malformed("evidence", f"two receipts for message {receipt.stream_seq} of {one.hub_identifier}")
    return sources
