"""What a hub's own log says of a capability, and sessions as commands show them."""

from typing import TYPE_CHECKING

from veen.cli import output
from veen.cli.client.showing import printable
from veen.cli.failures import hinted
from veen.cli.overlay import asking
from veen.cli.overlay.realm import realm
from veen.core import Unavailable, control, naming
from veen.overlays.admin import AUTHORIZATIONS
from veen.overlays.identity import Grant, Session
from veen.state.view import View

if TYPE_CHECKING:
    from veen.state.source import Source

_HINTS = (
    "veen cap authorize FILE shows a hub a capability, and its time begins",
    "--issued-at TIME says when it began, where that was at another hub",
)


async def grant_of(source: "Source", auth_ref: bytes, *, cached: bool) -> Grant:
    """The capability of an auth_ref, and when its time began: from the hub's control stream, which anyone may read."""
    hub_id = source.known.identity.hub_id
    stream_id = naming.control_stream(hub_id)
    realm.know(source, stream_id, control.reader_key(hub_id))
    with asking.advised(stream_id.hex(), AUTHORIZATIONS.CLASS):
        async with View(source, stream_id, AUTHORIZATIONS, cached=cached) as view, view.reading() as reading:
            found = reading.states.get(auth_ref)
    if not found:
        raise hinted(Unavailable(f"this hub was never shown the capability {auth_ref.hex()}"), *_HINTS)
    return Grant(found[0].said, found[0].hub_ts)


def shown(session: Session, proved: tuple[bytes, ...]) -> asking.Answer:
    """Whose account it is, and by what."""
    names = {
        "ctx_id": session.ctx_id,
        "org_id": session.org_id,
        "realm_id": session.realm_id,
        "device_pk": session.subject_pk,
        "issuer": session.issuer_pk,
        "auth_ref": session.auth_ref,
    }
    roles = sorted(session.roles)
    facts: dict[str, output.Value] = {name: one for name, one in names.items() if one is not None}
    facts |= {"expires_at": output.moment(session.expires_at), "roles": printable(", ".join(roles)) or None}
    data = {**names, "expires_at": session.expires_at, "roles": roles}
    return asking.Answer(facts=facts, data=data, parts=proved)
