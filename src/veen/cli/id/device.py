"""`veen id device`: the devices of a principal, whose keys act for it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, group
from veen.cli.id import principals
from veen.cli.id.principals import IdReading, Principal
from veen.cli.kit import key_files, open_session, output, output_files, read_state, send_event, values
from veen.cli.kit.client_options import PassphraseFile
from veen.cli.kit.common_options import ClientDir, JsonOption
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import MAX_SECONDS, ReadOptions, SendOptions, read_command, send_command
from veen.client import Card, cbor_sequence
from veen.client.client import Client
from veen.core import naming
from veen.overlays import Event, identity, identity_views
from veen.overlays.identity import IdentityOverlay
from veen.overlays.identity_auth import delegate
from veen.overlays.identity_events import Device, Flags, IdentityRevocation, PrincipalStream, device_id
from veen.state.event_sender import EventSender, SentEvent
from veen.state.state_view import StateView

app = group(
    "device",
    """Add, list, rotate and revoke the devices of a principal.

    A device is identified by the long-term key of its client directory, which its card contains; its secrets stay on
    the device. The principal adds the device, and grants it capabilities with veen id device grant.
    """,
)


CardFile: TypeAlias = Annotated[
    str, typer.Argument(metavar="CARD", help="the device: its card, or its client directory")
]
DeviceKey: TypeAlias = Annotated[
    str, typer.Argument(metavar="HEX|PATH", help="the device: its key, its card, or its client directory")
]
Name: TypeAlias = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="its display name")]
ExpiresIn: TypeAlias = Annotated[
    int | None,
    durations.whole_option("--expires-in", least=1, most=MAX_SECONDS, help="the device expires after this time"),
]
Reason: TypeAlias = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="the reason")]


@send_command(
    app, "add", "veen id device add phone.card --client ann --name phone", "veen id device add phone --client ann"
)
def add(
    options: SendOptions,
    card: CardFile,
    name: Name = None,
    expires_in: ExpiresIn = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="record it, but do not let it act")] = False,
    client_ids: Annotated[
        bool,
        typer.Option(
            "--client-ids", help="also add each client_id on its card, so that its messages can be attributed"
        ),
    ] = False,
) -> None:
    """Add a device, or replace its record.

    A client signs messages with client_ids that change every day. With --client-ids those on the card become devices
    too, each until its day on the card is over.
    """

    principal_pk, found = principals.own_key(options.client), _card(card)
    event = _record(principal_pk, found, name, expires_in, disabled=disabled)
    overlay, stream = principals.folding(PrincipalStream(principal_pk), options.stream)
    shown = principals.shown({"device_id": event.device_id, "device_pk": event.device_pk})
    if client_ids:
        _reject_blind(options)
        events = (*_client_id_devices(event, found), event)
        _send_all(options, overlay, stream, events, {**shown, "client_ids": len(found.client_ids)})
        return
    send_event.send_checked(options, overlay, lambda _: event, shown, stream=stream, blind=event)


@command(
    app,
    "grant",
    "veen id device grant phone.card --realm shop --stream orders --ttl 86400 --out phone.cap",
)
def grant(
    card: CardFile,
    ttl: Annotated[
        int,
        durations.whole_option(
            "--ttl", least=1, most=MAX_SECONDS, help="time to live, from when it is first presented to a hub"
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="the file to write")],
    realm: Annotated[
        list[str] | None,
        typer.Option("--realm", metavar="NAME|HEX", help="also the stream of your account there; can be repeated"),
    ] = None,
    stream: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME", help="a stream of an application; can be repeated")
    ] = None,
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Write capabilities with which a device acts for the principal of your own keys.

    The file has a capability for the device's key and one for each client_id on its card. They cover the principal's
    stream, the streams of its accounts (--realm) and those of applications (--stream). A hub accepts them if it was
    started with --issuer and the principal's key.
    """

    output_files.check_new(out)
    found = _card(card)
    realms = [principals.realm_of(one) for one in realm or ()]
    streams = [naming.stream_id(one) for one in stream or ()]
    with open_session.open_client_dir(client, passphrase_file) as folder:
        key = folder.identity.id_sign
        tokens = [
            delegate(key, subject, realm_ids=realms, stream_ids=streams, ttl=ttl)
            for subject in (found.id_sign, *found.client_ids)
        ]
    output_files.write_new(out, cbor_sequence.encode(tokens))
    rows: dict[str, output.Value] = {
        "issuer": key.public_key,
        "subject": found.id_sign,
        "tokens": len(tokens),
        "ttl": ttl,
    }
    covered = tokens[0].allow.stream_ids
    data = {**rows, "streams": covered, "auth_refs": [one.auth_ref() for one in tokens], "file": str(out)}
    output.facts({**rows, "streams": len(covered), "file": str(out)}, as_json, data)


@read_command(
    app, "list", "veen id device list --client ann", "veen id device list --principal ann.card --at 12 --json"
)
def list_(options: ReadOptions, principal: Principal = None) -> None:
    """List the devices of a principal, and whether each may act now."""

    principal_pk = principals.principal_of(principal, options.client)
    overlay, stream = principals.folding(PrincipalStream(principal_pk), options.stream)

    def look(reading: IdReading) -> StateAnswer:
        states, now = dict(reading.states), principals.now()
        rows, data, proved = [], [], []
        for one in identity_views.devices(states, principal_pk):
            why = identity_views.inactive_reason(states, principal_pk, one.device_pk, now)
            label = None if one.label is None else printable(one.label)
            rows.append((short(one.device_id), label, _status(why), short(one.device_pk)))
            fields = {"device_id": one.device_id, "device_pk": one.device_pk, "dh_pk": one.dh_pk, "label": one.label}
            times = {"created_at": one.created_at, "expires_at": one.expires_at}
            data.append({**fields, **times, "active": why is None, "reason": why})
            proved += _parts(states, principal_pk, one.device_id)
        columns = ("device_id", "name", "status", "device_pk")
        return read_state.StateAnswer(
            columns=columns,
            rows=rows,
            data={"principal_pk": principal_pk, "devices": data},
            parts=(*proved, identity.part_key(identity.PRINCIPAL, principal_pk)),
        )

    read_state.show_state(options, overlay, look, stream=stream)


@send_command(app, "revoke", "veen id device revoke phone.card --client ann --reason lost")
def revoke(options: SendOptions, device: DeviceKey, reason: Reason = None) -> None:
    """Revoke a device permanently.

    No later record restores it.
    """

    principal_pk, revoked = principals.own_key(options.client), device_id(_key(device))
    event = IdentityRevocation(principal_pk, device_id=revoked, reason=reason, ts=principals.now())
    overlay, stream = principals.folding(PrincipalStream(principal_pk), options.stream)
    shown = principals.shown({"device_id": revoked})
    send_event.send_checked(options, overlay, lambda _: event, shown, stream=stream, blind=event)


@send_command(app, "rotate", "veen id device rotate phone.card new-phone.card --client ann")
def rotate(
    options: SendOptions,
    device: DeviceKey,
    card: Annotated[str, typer.Argument(metavar="CARD", help="the new device: its card, or its client directory")],
    auth_ref: Annotated[
        str | None, typer.Option("--auth-ref", metavar="HEX", help="the old device's capability, revoked with it")
    ] = None,
    name: Name = None,
    expires_in: ExpiresIn = None,
    reason: Reason = None,
) -> None:
    """Replace a device: add the new one, then revoke the old one."""

    principal_pk, old = principals.own_key(options.client), device_id(_key(device))
    new = _record(principal_pk, _card(card), name, expires_in)
    revoked = None if auth_ref is None else principals.id_of(auth_ref, "an auth_ref")
    revocation = IdentityRevocation(principal_pk, None, old, revoked, reason=reason, ts=principals.now())
    overlay, stream = principals.folding(PrincipalStream(principal_pk), options.stream)
    _reject_blind(options)
    if new.device_id == old:
        raise Misuse("the new device is the old one", "create new keys with veen keygen, and give their card")
    shown = principals.shown({"device_id": new.device_id, "device_pk": new.device_pk, "revoked": old})
    # Add before revoking: an interruption in between leaves two devices instead of none.
    _send_all(options, overlay, stream, (new, revocation), shown)


def _send_all(
    options: SendOptions,
    overlay: IdentityOverlay,
    stream: str | None,
    events: tuple[Event, ...],
    shown: Mapping[str, output.Value],
) -> None:
    """Send events one after the other and show the receipt of the last."""

    async def work(client: Client, name: str) -> SentEvent:
        async with StateView.of(client, name, overlay, cached=not options.no_cache) as view:
            channel = EventSender(view)
            *first, last = events
            for event in first:
                await channel.send(event)
            return await channel.send(last)

    send_event.show_sent(send_event.run_at_hub(options, overlay, work, stream=stream), shown, options)


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


def _status(why: str | None) -> str:
    return "active" if why is None else why.removeprefix("it ")


def _parts(states: object, principal_pk: bytes, device_id: bytes) -> list[bytes]:
    """Return the parts that an answer about a device depends on: its record and its revocations."""

    revoked = [identity.part_key(identity.REVOKED_DEVICE, device_id, one) for one in (principal_pk, None)]
    assert isinstance(states, dict)
    return [identity.part_key(identity.DEVICE, principal_pk, device_id), *(part for part in revoked if part in states)]


def _card(text: str) -> Card:
    return key_files.read_card(Path(text))


def _key(text: str) -> bytes:
    try:
        return values.card_key(text)
    except ValueError as error:
        raise Misuse(str(error), "veen id device list --json shows the keys of devices") from None


def _reject_blind(options: SendOptions) -> None:
    if options.blind:
        raise Misuse("this command needs to read the state before it sends", "leave out --blind")
