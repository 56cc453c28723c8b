"""`veen id auth message`: whose account sent an entry of a stream. id-spec §9.2."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from veen.cli.overlay.declaring import Reads, reads
from veen.cli.overlay.identity.authenticating import app
from veen.cli.overlay.identity.whom import Realm

if TYPE_CHECKING:
    from veen.cli.overlay.asking import Answer
    from veen.cli.overlay.identity.whom import IdReading
    from veen.client.entry import Entry
    from veen.overlays.identity import Grant
    from veen.overlays.identity.state import State
    from veen.state.source import Source
    from veen.state.view import View


@reads(app, "message", "veen id auth message 12 --stream orders --realm shop --client shop")
def message(
    asked: Reads,
    seq: Annotated[str, typer.Argument(metavar="[EPOCH:]SEQ", help="which entry of the stream")],
    realm: Realm,
    people: Annotated[
        str | None,
        typer.Option(
            "--people", metavar="NAME", help="where principals are kept", show_default="each on its own stream"
        ),
    ] = None,
) -> None:
    """Say whose account sent an entry of a stream.

    Its signature, its capability and its device must hold. The capability is looked up in the hub's own log, and
    the device on its principal's stream, as that is now or with --at as it was.
    """
    from veen.cli.overlay import asking
    from veen.cli.overlay.identity import grants, whom
    from veen.core import naming
    from veen.overlays.identity import Policy, PrincipalStream, authenticate, device_id, parts

    entry, grant, label, name = _gathered(asked, seq)
    policy = Policy(whom.realm_of(realm), frozenset({naming.stream_id(name)}))
    overlay, stream = whom.folding(PrincipalStream(grant.token.issuer_pk), people)

    def look(reading: "IdReading") -> "Answer":
        states = dict(reading.states)
        session = authenticate(entry.msg, grant, policy, states, hub_ts=entry.hub_ts, labels=(label,))
        device = parts.device(session.issuer_pk, device_id(session.subject_pk))
        return grants.shown(session, (device,) if device in states else ())

    asking.answer(replace(asked, stream=people), overlay, look, stream=stream)


def _gathered(asked: Reads, seq: str) -> "tuple[Entry, Grant, bytes, str]":
    """The entry, its capability, the label that its stream has then, and the stream."""
    from veen.cli.failures import hinted
    from veen.cli.overlay import asking
    from veen.cli.overlay.identity import grants
    from veen.core import Unverified
    from veen.overlays.identity import IDENTITY

    async def gather(view: "View[State, State]", name: str) -> "tuple[Entry, Grant, bytes, str]":
        at = asking.place(seq, view)
        assert at is not None
        entry = await _entry(view.source, view.stream_id, at.epoch, at.stream_seq)
        if entry.msg.auth_ref is None:
            hint = "only what is sent under a capability tells whose it is"
            raise hinted(Unverified("auth", "the message names no capability"), hint)
        grant = await grants.grant_of(view.source, entry.msg.auth_ref, cached=not asked.no_cache)
        return entry, grant, view.source.label(view.stream_id, at.epoch), name

    return asking.viewing(replace(asked, at=None, prove=False, out=None), IDENTITY, gather)


async def _entry(source: "Source", stream_id: bytes, epoch: int, stream_seq: int) -> "Entry":
    """One entry, verified: a hub gives it by itself, a directory in its turn."""
    from contextlib import aclosing

    from veen.core import Mmr, Unavailable
    from veen.state.hubsource import HubSource

    if isinstance(source, HubSource):
        reading = source.client.read(stream_id, stream_seq, stream_seq, epoch=epoch)
        async with aclosing(reading) as entries:
            async for entry in entries:
                return entry
    else:
        async with aclosing(source.read(stream_id, epoch, Mmr())) as pages:
            async for page in pages:
                for entry in page:
                    if entry.stream_seq == stream_seq:
                        return entry
    raise Unavailable(f"the stream has no entry {stream_seq} yet")
