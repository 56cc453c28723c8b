"""What a hub says of itself, read strictly: the part that a client builds on. Nothing of it is believed unchecked."""

from dataclasses import dataclass

from veen.core import HubIdentity, IdentitySignature, Limits, Malformed, Profile
from veen.core.strict_json import Json
from veen.core.wire_json import Fields


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
        said = Fields.of("hub status", found)
        made = cls(
            identity=said.wire("identity", HubIdentity),
            signature=said.wire("identity_sig", IdentitySignature),
            profile=said.wire("profile", Profile),
            limits=said.wire("limits", Limits),
            hub_pk=said.hash("hub_pk"),
            hub_ts=said.number("hub_ts"),
            epoch=said.number("epoch"),
            admission=said.text("admission"),
            server_version=said.text("server_version"),
            labels=said.number("labels"),
            entries=said.number("entries"),
            shown=said.found,
        )
        if said.hash("profile_id") != made.profile.profile_id():
            raise Malformed("hub status", "profile_id is not that of its profile")
        if said.hash("hub_id") != made.identity.hub_id:
            raise Malformed("hub status", "hub_id is not that of its identity")
        return made
