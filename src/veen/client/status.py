"""What a hub says of itself, read strictly: the part that a client builds on. Nothing of it is believed unchecked."""

from dataclasses import dataclass
from typing import TypeVar

from veen.core import HubIdentity, IdentitySignature, Limits, Malformed, Profile, jsonform
from veen.core.cbor import Late, Wire
from veen.core.hashing import U64_MAX
from veen.core.jsontext import Json

W = TypeVar("W", bound=Wire)


@dataclass(frozen=True, slots=True)
class HubStatus:
    """GET /tooling/status."""

    identity: HubIdentity
    signature: IdentitySignature
    profile: Profile
    limits: Limits
    hub_pk: bytes  # the key it says is active
    hub_ts: int
    epoch: int
    admission: str
    server_version: str
    labels: int
    entries: int
    shown: dict[str, Json]  # everything it said, for people to read

    @classmethod
    def read(cls, found: Json) -> "HubStatus":
        if not isinstance(found, dict):
            raise Malformed("hub status", "not an object")
        made = cls(
            identity=_wire(found, "identity", HubIdentity),
            signature=_wire(found, "identity_sig", IdentitySignature),
            profile=_wire(found, "profile", Profile),
            limits=_wire(found, "limits", Limits),
            hub_pk=_hash(found, "hub_pk"),
            hub_ts=_number(found, "hub_ts"),
            epoch=_number(found, "epoch"),
            admission=_text(found, "admission"),
            server_version=_text(found, "server_version"),
            labels=_number(found, "labels"),
            entries=_number(found, "entries"),
            shown=found,
        )
        if _hash(found, "profile_id") != made.profile.profile_id():
            raise Malformed("hub status", "profile_id is not that of its profile")
        if _hash(found, "hub_id") != made.identity.hub_id:
            raise Malformed("hub status", "hub_id is not that of its identity")
        return made


def _wire(found: dict[str, Json], name: str, cls: type[W]) -> W:
    late = Late()
    try:
        wire = jsonform.from_json(cls, _field(found, name), late)
        late.judge()
    except Malformed as error:
        raise Malformed("hub status", f"{name}: {error.reason}") from None
    return wire


def _field(found: dict[str, Json], name: str) -> Json:
    if name not in found:
        raise Malformed("hub status", f"{name} is missing")
    return found[name]


def _number(found: dict[str, Json], name: str) -> int:
    number = _field(found, name)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= U64_MAX:
        raise Malformed("hub status", f"{name} is not an unsigned integer")
    return number


def _text(found: dict[str, Json], name: str) -> str:
    text = _field(found, name)
    if not isinstance(text, str):
        raise Malformed("hub status", f"{name} is not text")
    return text


def _hash(found: dict[str, Json], name: str) -> bytes:
    text = _text(found, name)
    try:
        content = bytes.fromhex(text)
    except ValueError:
        content = b""
    if len(content) != 32 or content.hex() != text:
        raise Malformed("hub status", f"{name} is not 64 lowercase hex digits")
    return content
