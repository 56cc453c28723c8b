"""The hub status, decoded strictly. `trust` verifies it before the client uses it."""

from dataclasses import dataclass

from veen.core import HubIdentity, IdentitySignature, Limits, Malformed, Profile
from veen.core.strict_json import Json
from veen.core.wire_json import Fields


@dataclass(frozen=True, slots=True)
class HubStatus:
    """The response to GET /tooling/status."""

    identity: HubIdentity
    signature: IdentitySignature
    profile: Profile
    limits: Limits
    hub_pk: bytes  # the key that the hub claims is active
    hub_ts: int
    epoch: int
    admission: str
    server_version: str
    labels: int
    entries: int
    shown: dict[str, Json]  # the whole response, for display

    @classmethod
    def read(cls, found: Json) -> "HubStatus":
        fields = Fields.of("hub status", found)
        status = cls(
            identity=fields.wire("identity", HubIdentity),
            signature=fields.wire("identity_sig", IdentitySignature),
            profile=fields.wire("profile", Profile),
            limits=fields.wire("limits", Limits),
            hub_pk=fields.hash("hub_pk"),
            hub_ts=fields.number("hub_ts"),
            epoch=fields.number("epoch"),
            admission=fields.text("admission"),
            server_version=fields.text("server_version"),
            labels=fields.number("labels"),
            entries=fields.number("entries"),
            shown=fields.found,
        )
        if fields.hash("profile_id") != status.profile.profile_id():
            raise Malformed("hub status", "profile_id does not match its profile")
        if fields.hash("hub_id") != status.identity.hub_id:
            raise Malformed("hub status", "hub_id does not match its identity")
        return status
