"""`veen id device`: the devices of a principal, whose keys act for it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, misuse, option, options_command
from veen.cli import cap
from veen.cli.cap import Bare, HubIds, NotAfter
from veen.cli.id import principals
from veen.cli.id.principals import Principal, Reason, ScopeSender
from veen.cli.kit import key_files, output_files, values
from veen.cli.kit.common_options import MAX_SECONDS, ClientOptions
from veen.cli.kit.result import Moment, Result, fields_of
from veen.cli.kit.state_session import Answer, ReadSession, SendSession, SentResult, read_command, send_command
from veen.client import Card, capabilities, cbor_sequence
from veen.core import naming
from veen.overlays import identity, identity_views
from veen.overlays.identity_auth import delegate
from veen.overlays.identity_events import Device, Flags, IdentityRevocation, PrincipalStream, device_id

app = group(
    "device",
    """Add, list, rotate and revoke the devices of a principal.

    A device is identified by the long-term key of its client directory, which its card contains; its secrets stay on
    the device. The principal adds the device, and grants it capabilities with veen id device grant.
    """,
)


def _card(text: str) -> Card:
    return key_files.read_card(Path(text))


def _device_id(text: str) -> bytes:
    with misuse("veen id device list --json shows the keys of devices"):
        return device_id(values.card_key(text))


CardFile: TypeAlias = Annotated[Card, argument("CARD", "the device: its card, or its client directory", parser=_card)]
DeviceId: TypeAlias = Annotated[
    bytes, argument("HEX|PATH", "the device: its key, its card, or its client directory", parser=_device_id)
]
Name: TypeAlias = Annotated[str | None, option("--name TEXT", "its display name")]
ExpiresIn: TypeAlias = Annotated[
    int | None,
    durations.whole_option("--expires-in", least=1, most=MAX_SECONDS, help="the device expires after this time"),
]


@send_command(
    app, "add", "veen id device add phone.card --client ann --name phone", "veen id device add phone --client ann"
)
async def add(
    session: SendSession,
    card: CardFile,
    name: Name = None,
    expires_in: ExpiresIn = None,
    disabled: Annotated[bool, option("--disabled", "record it, but do not let it act")] = False,
    client_ids: Annotated[
        bool,
        option("--client-ids", "also add each client_id on its card, so that its messages can be attributed"),
    ] = False,
) -> SentResult:
    """Add a device, or replace its record.

    A client signs messages with client_ids that change every day. With --client-ids those on the card become devices
    too, each until its day on the card is over.
    """
    principal_pk = principals.own_key(session)
    event = _record(principal_pk, card, name, expires_in, disabled=disabled)
    if client_ids:
        session.reject_blind()
    sender = ScopeSender(session, PrincipalStream(principal_pk))
    for one in _client_id_devices(event, card) if client_ids else ():
        await sender.send(one)
    shown = len(card.client_ids) if client_ids else None
    return await sender.send(event, device_id=event.device_id, device_pk=event.device_pk, client_ids=shown)


@options_command(
    ClientOptions,
    app,
    "grant",
    "veen id device grant phone.card --realm shop --stream orders --ttl 86400 --out phone.cap",
)
def grant(
    options: ClientOptions,
    card: CardFile,
    ttl: Annotated[
        int,
        durations.whole_option(
            "--ttl", least=1, most=MAX_SECONDS, help="time to live, from when it is first presented to a hub"
        ),
    ],
    out: Annotated[Path, option("--out FILE", "the file to write")],
    realm: Annotated[
        list[bytes] | None,
        option(
            "--realm NAME|HEX", "also the stream of your account there; can be repeated", parser=principals.realm_id_of
        ),
    ] = None,
    stream: Annotated[list[str] | None, option("--stream NAME", "a stream of an application; can be repeated")] = None,
    hub: HubIds = None,
    not_after: NotAfter = None,
    bare: Bare = False,
) -> None:
    """Write capabilities with which a device acts for the principal of your own keys.

    The file has a capability for the device's key and one for each client_id on its card. They cover the principal's
    stream, the streams of its accounts (--realm) and application streams (--stream). A hub accepts them if it was
    started with --issuer and the principal's key.
    """
    output_files.check_new(out)
    streams = [naming.stream_id(one) for one in stream or ()]
    with options.open() as folder:
        key = folder.identity.id_sign
        tokens = [
            delegate(key, subject, realm_ids=realm or (), stream_ids=streams, ttl=ttl)
            for subject in (card.id_sign, *card.client_ids)
        ]
        hubs, end = cap.hubs_of(hub, bare, folder), cap.end_of(not_after, ttl)
        issued = capabilities.present(key, tokens, hubs, end)
    output_files.write_new(out, cbor_sequence.encode(issued))
    data = {
        "issuer": key.public_key,
        "subject": card.id_sign,
        "tokens": len(tokens),
        "ttl": ttl,
        "streams": tokens[0].allow.stream_ids,
        "hubs": hubs,
        "not_after": Moment(end) if hubs else None,
        "auth_refs": [one.auth_ref() for one in tokens],
        "file": str(out),
    }
    facts = ("issuer", "subject", "tokens", "ttl", ("streams", lambda data: len(data["streams"])))
    named = (("hubs", lambda data: ", ".join(hub.hex() for hub in data["hubs"])), "not_after")
    facts = (*facts, *(named if hubs else ()), "file")
    Result(data, facts=facts).show(options.as_json)


@read_command(
    app, "list", "veen id device list --client ann", "veen id device list --principal ann.card --at 12 --json"
)
async def list_(session: ReadSession, principal: Principal = None) -> Answer:
    """List the devices of a principal, and whether each may act now."""
    principal_pk = principal or principals.own_key(session)
    states = dict((await principals.open_scope(session, PrincipalStream(principal_pk))).states)
    now, data, proved = principals.now(), [], []
    for one in identity_views.devices(states, principal_pk):
        why = identity_views.inactive_reason(states, principal_pk, one.device_pk, now)
        fields = fields_of(one, "device_id", "device_pk", "dh_pk", "label", "created_at", "expires_at")
        data.append({**fields, "active": why is None, "reason": why})
        revoked = [identity.part_key(identity.REVOKED_DEVICE, one.device_id, by) for by in (principal_pk, None)]
        proved += [
            identity.part_key(identity.DEVICE, principal_pk, one.device_id),
            *(part for part in revoked if part in states),
        ]
    return Answer(
        {"principal_pk": principal_pk, "devices": data},
        rows="devices",
        columns=("device_id", ("name", "label"), ("status", _status), "device_pk"),
        parts=(*proved, identity.part_key(identity.PRINCIPAL, principal_pk)),
    )


@send_command(app, "revoke", "veen id device revoke phone.card --client ann --reason lost")
async def revoke(session: SendSession, device: DeviceId, reason: Reason = None) -> SentResult:
    """Revoke a device permanently.

    No later record restores it.
    """
    principal_pk = principals.own_key(session)
    event = IdentityRevocation(principal_pk, device_id=device, reason=reason, ts=principals.now())
    return await ScopeSender(session, PrincipalStream(principal_pk)).send(event, device_id=device)


@send_command(app, "rotate", "veen id device rotate phone.card new-phone.card --client ann")
async def rotate(
    session: SendSession,
    device: DeviceId,
    card: Annotated[Card, argument("CARD", "the new device: its card, or its client directory", parser=_card)],
    auth_ref: Annotated[
        bytes | None,
        option(
            "--auth-ref HEX",
            "the old device's capability, revoked with it",
            parser=values.id_parser("an auth_ref"),
        ),
    ] = None,
    name: Name = None,
    expires_in: ExpiresIn = None,
    reason: Reason = None,
) -> SentResult:
    """Replace a device: add the new one, then revoke the old one."""
    session.reject_blind()
    principal_pk = principals.own_key(session)
    new = _record(principal_pk, card, name, expires_in)
    if new.device_id == device:
        raise Misuse("the new device is the old one", "create new keys with veen keygen, and give their card")
    revocation = IdentityRevocation(principal_pk, None, device, auth_ref, reason=reason, ts=principals.now())
    sender = ScopeSender(session, PrincipalStream(principal_pk))
    # Add before revoking: an interruption in between leaves two devices instead of none.
    await sender.send(new)
    return await sender.send(revocation, device_id=new.device_id, device_pk=new.device_pk, revoked=device)


def _client_id_devices(device: Device, card: Card) -> tuple[Device, ...]:
    """Return the client_ids of a card as devices. Each expires with its prekey."""
    ends = (prekey.expires_at for prekey in card.prekeys)
    return tuple(
        replace(device, device_id=device_id(one), device_pk=one, expires_at=min(end, device.expires_at or end))
        for one, end in zip(card.client_ids, ends, strict=False)
    )


def _record(
    principal_pk: bytes, card: Card, name: str | None, expires_in: int | None, *, disabled: bool = False
) -> Device:
    now = principals.now()
    ends = None if expires_in is None else now + expires_in
    flags = Flags(True) if disabled else None
    return Device(principal_pk, device_id(card.id_sign), card.id_sign, card.id_dh, name, now, ends, flags)


def _status(row: dict[str, Any]) -> str:
    why: str | None = row["reason"]
    return "active" if why is None else why.removeprefix("it ")
