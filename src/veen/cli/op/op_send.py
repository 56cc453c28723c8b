"""`veen op send`: operations of the nine profiles, judged by the state before they are sent."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit.state_options import SendOptions, send_command

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.core.strict_json import Json
    from veen.overlays import AnyOverlay
    from veen.overlays.operations import Mirror, Operation
    from veen.overlays.operations.mirror import Validated
    from veen.state.event_sender import SentEvent
    from veen.state.state_view import StateView

_FILE = "@"
_OF_LOG = {"state_id", "upto_stream_seq", "mmr_root", "state_hash"}
_OF_SOURCE = ("source_hub_identifier", "mirror_time", "metadata")


def add(app: typer.Typer) -> None:
    """Declare it in the group."""
    send_command(
        app,
        "send",
        "veen op send access.revoke -f subject_identity=name:bob -f reason=left --stream ops",
        "veen op send query.audit --body @read.json --stream audit",
        "veen op send state.checkpoint -f state_class=kv --stream settings",
        "veen op send federation.mirror --source door.evidence --stream mirrored",
    )(send)


def send(
    asked: SendOptions,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="which operation, as veen op kinds lists them")],
    fields: Annotated[
        list[str] | None,
        typer.Option("--field", "-f", metavar="NAME=VALUE", help="a field; again for each item of a list"),
    ] = None,
    body: Annotated[
        str | None, typer.Option("--body", metavar="JSON|@FILE", help="all fields, as a JSON object")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", metavar="FILE", help="federation.mirror: the message to mirror, as evidence of it"),
    ] = None,
    source_pin: Annotated[
        str | None,
        typer.Option("--source-pin", metavar="HEX|PATH", help="federation.mirror: whose word that must be"),
    ] = None,
) -> None:
    """Send an operation, unless the state refuses it, and verify the hub's receipt.

    An identity, an account or a reference is 64 hex digits, or name: and a name whose hash it is; a stream is given by
    its name. What may be anything is JSON, and text after hex: is bytes. Where nothing is logged, nothing was carried
    out: an operation is committed with its receipt, and not before. A mirror record is made from evidence, and from
    nothing that was not verified; what a state.checkpoint does not say is taken from the log.
    """
    from veen.cli.kit import send_event
    from veen.cli.op import field_parser
    from veen.overlays.operations import operation_id

    made_of = field_parser.kind_of(kind)
    given = _given(made_of, fields or [], body)
    checked = _checked(made_of, given, source, source_pin)
    overlay = overlay_of(made_of)
    event = None if _follows(made_of, given) else field_parser.operation(made_of, given)

    async def speak(client: "Client", name: str) -> "SentEvent":
        from veen.state.event_sender import EventSender, SentEvent
        from veen.state.state_view import StateView

        async def blindly(said: "Operation") -> SentEvent:
            ends, parent = _ends(said, client), _parent(said)
            sent = await client.send(name, said.encode(), schema=said.SCHEMA, parent_id=parent, expires_at=ends)
            return SentEvent(sent)

        if asked.blind and event is not None:  # for writers who cannot read, and so have no view
            return await blindly(event)
        async with StateView.of(client, name, overlay, cached=not asked.no_cache) as view:
            made = _mirror(checked, given, view) if checked else event or await _checkpoint(given, view)
            if asked.blind:
                return await blindly(made)
            return await EventSender(view).send(made, parent_id=_parent(made), expires_at=_ends(made, client))

    done = send_event.run_at_hub(asked, overlay, speak)
    send_event.show_sent(
        done, {"kind": made_of.NAME.removesuffix(".v1"), "operation_id": operation_id(done.msg_id)}, asked
    )


def _follows(kind: "type[Operation]", given: "dict[str, Json]") -> bool:
    """Whether some of what it says is to be taken from a log."""
    from veen.overlays.operations import Mirror, StateCheckpoint

    return kind is Mirror or (kind is StateCheckpoint and not given.keys() >= _OF_LOG)


def _parent(said: "Operation") -> bytes | None:
    """The header's `parent_id`: only a mirror record has one, the message it mirrors."""
    from veen.overlays.operations import Mirror

    return said.source_leaf_hash if isinstance(said, Mirror) else None


def _ends(said: "Operation", client: "Client") -> int | None:
    """The header's end, by the time to live of a paid operation."""
    from veen.overlays.operations import Paid

    ttl = said.ttl_seconds if isinstance(said, Paid) else None
    return None if ttl is None else client.session.clock.now() + ttl


def overlay_of(kind: "type[Operation]") -> "AnyOverlay":
    """The profile that an operation is of."""
    from veen.overlays.operations import OPERATION_OVERLAYS, OPERATIONS

    return next(one for one in OPERATION_OVERLAYS if one is not OPERATIONS and kind in one.EVENTS)


def _given(kind: "type[Operation]", fields: list[str], body: str | None) -> "dict[str, Json]":
    from veen.cli.op import field_parser

    if body is None:
        return field_parser.words(kind, fields)
    data = Path(body[1:]).read_bytes() if body.startswith(_FILE) else body.encode()
    return {**field_parser.document(kind, data), **field_parser.words(kind, fields)}


def _checked(
    kind: "type[Operation]", given: "dict[str, Json]", source: Path | None, pin: str | None
) -> "Validated | None":
    """The source of a mirror record, verified. F1."""
    from veen.cli.kit import pinning
    from veen.cli.kit.exit_status import hinted
    from veen.client import durable, evidence_verify
    from veen.client.evidence import MAX_EVIDENCE_BYTES
    from veen.core import Unverified
    from veen.overlays.operations import Mirror
    from veen.overlays.operations.mirror import Validated

    if kind is not Mirror:
        if source is not None or pin is not None:
            raise Misuse("--source is for federation.mirror", "leave it out")
        return None
    if source is None:
        hint = "veen evidence at the source makes the file of one entry"
        raise Misuse("a message is mirrored from evidence of it: --source is needed", hint)
    unknown = [name for name in given if name not in _OF_SOURCE]
    if unknown:
        raise Misuse(f"{unknown[0]} follows from --source", f"give {', '.join(_OF_SOURCE)}, or nothing")
    found = evidence_verify.verify(durable.read_file(source, MAX_EVIDENCE_BYTES), pinning.pinned_key(pin))
    if pin is None and "source_hub_identifier" not in given:
        unnamed = Unverified(str(source), "no source hub was named, and anyone could have made it")
        raise hinted(unnamed, "--source-pin HUB_ID names the hub that must have signed it")
    if found.contradictions:
        raise Unverified(str(source), f"its hub contradicts itself: {found.contradictions[0]}")
    if len(found.entries) != 1:
        raise Unverified(str(source), f"it shows {len(found.entries)} messages, and one is mirrored at a time")
    receipt = found.entries[0].receipt
    if not any((tie.label, tie.stream_seq) == (receipt.label, receipt.stream_seq) for tie in found.ties):
        raise Unverified(str(source), "it has no proof of its message")
    named = given.get("source_hub_identifier", found.hub_id.hex())
    if not isinstance(named, str):
        raise Misuse("source_hub_identifier is not text", "give the id or the address of the source")
    if named != found.hub_id.hex() and pin is None:
        raise Misuse(f"nothing says that this is the word of {named}", "give --source-pin HUB_ID")
    return Validated(named, receipt)


def _mirror(checked: "Validated", given: "dict[str, Json]", view: "StateView[Any, Any]") -> "Mirror":
    from veen.cli.op import field_parser
    from veen.overlays.operations import Mirror, record

    made = record(checked, view.source.label(view.stream_id, view.present_epoch()))
    fields = {name: getattr(made, name) for name in ("source_hub_identifier", "source_stream_seq")}
    hashes = ("source_label", "source_leaf_hash", "source_receipt_root", "target_label")
    whole = field_parser.operation(Mirror, {**given, **fields, **{name: getattr(made, name).hex() for name in hashes}})
    assert isinstance(whole, Mirror)
    return whole


async def _checkpoint(given: "dict[str, Json]", view: "StateView[Any, Any]") -> "Operation":
    """What a checkpoint does not say is taken from the log: the whole state, at the end, unless it says otherwise."""
    from veen.cli.op import field_parser
    from veen.overlays import At, registry
    from veen.overlays.operations import StateCheckpoint
    from veen.state.state_view import StateView

    asked_for: dict[str, Json] = {"state_id": view.stream_id.hex(), **given}
    overlay = registry().of_class(str(given.get("state_class", "")))
    if overlay is None:  # then nobody here can say what it comes to
        return field_parser.operation(StateCheckpoint, asked_for)
    upto = given.get("upto_stream_seq")
    at = At(view.present_epoch(), upto) if isinstance(upto, int) else None
    async with StateView(view.source, view.stream_id, overlay, cached=False) as states, states.reading(at) as reading:
        if not reading.at.stream_seq:
            raise Misuse("this stream has no entries yet", "a checkpoint is of what is there")
        state_id = field_parser.id_of("state_id", asked_for["state_id"])
        part = (state_id,) if state_id in reading.states else ()
        found: dict[str, Json] = {
            "upto_stream_seq": reading.at.stream_seq,
            "mmr_root": (await view.source.receipt(view.stream_id, reading.at)).mmr_root.hex(),
            "state_hash": reading.state_hash(*part).hex(),
        }
    return field_parser.operation(StateCheckpoint, {**found, **asked_for})
