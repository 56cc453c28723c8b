"""`veen op send`: send operations of the nine profiles, after checking them against the state."""

from pathlib import Path
from typing import Annotated, Any

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import pinning, send_event
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.state_options import SendOptions, send_command
from veen.cli.op import field_parser
from veen.client import evidence, local_files
from veen.client.client import Client
from veen.client.evidence import MAX_EVIDENCE_BYTES
from veen.core import Unverified
from veen.core.strict_json import Json
from veen.overlays import AnyOverlay, At, registry
from veen.overlays.operations import OPERATION_OVERLAYS
from veen.overlays.operations.mirror import Validated, record
from veen.overlays.operations.operation_events import Mirror, Operation, Paid, StateCheckpoint, operation_id
from veen.overlays.operations.operation_index import OPERATIONS
from veen.state.event_sender import EventSender, SentEvent
from veen.state.state_view import StateView

_FILE_PREFIX = "@"
_CHECKPOINT_FIELDS = {
    "state_id",
    "upto_stream_seq",
    "mmr_root",
    "state_hash",
}  # missing ones are filled in from the log
_MIRROR_FIELDS = ("source_hub_identifier", "mirror_time", "metadata")  # all others come from --source


def add(app: typer.Typer) -> None:
    send_command(
        app,
        "send",
        "veen op send access.revoke -f subject_identity=name:bob -f reason=left --stream ops",
        "veen op send query.audit --body @read.json --stream audit",
        "veen op send state.checkpoint -f state_class=kv --stream settings",
        "veen op send federation.mirror --source door.evidence --stream mirrored",
    )(send)


def send(
    options: SendOptions,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="the kind of operation; veen op kinds lists them")],
    fields: Annotated[
        list[str] | None,
        typer.Option("--field", "-f", metavar="NAME=VALUE", help="a field; again for each item of a list"),
    ] = None,
    body: Annotated[
        str | None, typer.Option("--body", metavar="JSON|@FILE", help="all fields, as a JSON object")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", metavar="FILE", help="federation.mirror: evidence of the message to mirror"),
    ] = None,
    source_pin: Annotated[
        str | None,
        typer.Option("--source-pin", metavar="HEX|PATH", help="federation.mirror: the hub that must have signed it"),
    ] = None,
) -> None:
    """Send an operation, unless the state rejects it, and verify the hub's receipt.

    An identity, an account or a reference is 64 hex digits, or name: and a name to hash; a stream is given by its name.
    Free-form fields are JSON, and text after hex: is bytes. An operation is committed once it has a receipt, not
    before. A mirror record is made from verified evidence only. Fields that a state.checkpoint leaves out are filled in
    from the log.
    """

    operation_type = field_parser.kind_of(kind)
    given = _parse_fields(operation_type, fields or [], body)
    mirrored = _verify_source(operation_type, given, source, source_pin)
    overlay = overlay_of(operation_type)
    event = None if _needs_log(operation_type, given) else field_parser.operation(operation_type, given)

    async def work(client: Client, name: str) -> SentEvent:
        async def send_unchecked(operation: Operation) -> SentEvent:
            expires_at, parent = _expires_at(operation, client), _parent(operation)
            sent = await client.send(
                name, operation.encode(), schema=operation.SCHEMA, parent_id=parent, expires_at=expires_at
            )
            return SentEvent(sent)

        if options.blind and event is not None:  # a writer without the reader key cannot open a view
            return await send_unchecked(event)
        async with StateView.of(client, name, overlay, cached=not options.no_cache) as view:
            made = _mirror(mirrored, given, view) if mirrored else event or await _checkpoint(given, view)
            if options.blind:
                return await send_unchecked(made)
            return await EventSender(view).send(made, parent_id=_parent(made), expires_at=_expires_at(made, client))

    done = send_event.run_at_hub(options, overlay, work)
    send_event.show_sent(
        done, {"kind": operation_type.NAME.removesuffix(".v1"), "operation_id": operation_id(done.msg_id)}, options
    )


def _needs_log(kind: type[Operation], given: dict[str, Json]) -> bool:
    """Return whether some fields must be filled in from a log."""

    return kind is Mirror or (kind is StateCheckpoint and not given.keys() >= _CHECKPOINT_FIELDS)


def _parent(operation: Operation) -> bytes | None:
    """Return the header's `parent_id`. Only a mirror record has one: the message it mirrors."""

    return operation.source_leaf_hash if isinstance(operation, Mirror) else None


def _expires_at(operation: Operation, client: Client) -> int | None:
    """Return the header's expiry, from the time to live of a paid operation."""

    ttl = operation.ttl_seconds if isinstance(operation, Paid) else None
    return None if ttl is None else client.session.clock.now() + ttl


def overlay_of(kind: type[Operation]) -> AnyOverlay:
    """Return the profile overlay of a kind of operation."""

    return next(one for one in OPERATION_OVERLAYS if one is not OPERATIONS and kind in one.EVENTS)


def _parse_fields(kind: type[Operation], fields: list[str], body: str | None) -> dict[str, Json]:
    if body is None:
        return field_parser.words(kind, fields)
    data = Path(body[1:]).read_bytes() if body.startswith(_FILE_PREFIX) else body.encode()
    return {**field_parser.document(kind, data), **field_parser.words(kind, fields)}


def _verify_source(
    kind: type[Operation], given: dict[str, Json], source: Path | None, pin: str | None
) -> Validated | None:
    """Verify the evidence that a mirror record is made from. Rule F1."""

    if kind is not Mirror:
        if source is not None or pin is not None:
            raise Misuse("--source and --source-pin are for federation.mirror", "leave them out")
        return None
    if source is None:
        hint = "veen evidence with a client of the source hub writes the evidence of one entry"
        raise Misuse("missing --source: a mirror record is made from evidence", hint)
    unknown = [name for name in given if name not in _MIRROR_FIELDS]
    if unknown:
        raise Misuse(f"{unknown[0]} is taken from --source", f"give only {', '.join(_MIRROR_FIELDS)}")
    found = evidence.verify(local_files.read_file(source, MAX_EVIDENCE_BYTES), pinning.pinned_key(pin))
    if pin is None and "source_hub_identifier" not in given:
        unnamed = Unverified(str(source), "no source hub was named, so anyone could have made the file")
        raise hinted(unnamed, "--source-pin HUB_ID names the hub that must have signed it")
    if found.contradictions:
        raise Unverified(str(source), f"its hub contradicts itself: {found.contradictions[0]}")
    if len(found.entries) != 1:
        raise Unverified(str(source), f"it contains {len(found.entries)} messages, but must contain one")
    receipt = found.entries[0].receipt
    if not any((tie.label, tie.stream_seq) == (receipt.label, receipt.stream_seq) for tie in found.ties):
        raise Unverified(str(source), "it has no inclusion proof of its message")
    named = given.get("source_hub_identifier", found.hub_id.hex())
    if not isinstance(named, str):
        raise Misuse("source_hub_identifier is not text", "give the id or the address of the source hub")
    if named != found.hub_id.hex() and pin is None:
        raise Misuse(f"the evidence does not prove that {named} signed it", "give --source-pin HUB_ID")
    return Validated(named, receipt)


def _mirror(mirrored: Validated, given: dict[str, Json], view: StateView[Any, Any]) -> Mirror:
    made = record(mirrored, view.source.label(view.stream_id, view.present_epoch()))
    fields = {name: getattr(made, name) for name in ("source_hub_identifier", "source_stream_seq")}
    hashes = ("source_label", "source_leaf_hash", "source_receipt_root", "target_label")
    whole = field_parser.operation(Mirror, {**given, **fields, **{name: getattr(made, name).hex() for name in hashes}})
    assert isinstance(whole, Mirror)
    return whole


async def _checkpoint(given: dict[str, Json], view: StateView[Any, Any]) -> Operation:
    """Fill in missing fields of a checkpoint from the log. The default is the whole state at the end of the stream."""

    fields: dict[str, Json] = {"state_id": view.stream_id.hex(), **given}
    overlay = registry().of_class(str(given.get("state_class", "")))
    if overlay is None:  # an unknown state class cannot be folded here, so nothing can be filled in
        return field_parser.operation(StateCheckpoint, fields)
    upto = given.get("upto_stream_seq")
    at = At(view.present_epoch(), upto) if isinstance(upto, int) else None
    async with StateView(view.source, view.stream_id, overlay, cached=False) as states, states.reading(at) as reading:
        if not reading.at.stream_seq:
            raise Misuse("this stream has no entries", "send the checkpoint after the first entry")
        state_id = field_parser.id_of("state_id", fields["state_id"])
        part = (state_id,) if state_id in reading.states else ()
        found: dict[str, Json] = {
            "upto_stream_seq": reading.at.stream_seq,
            "mmr_root": (await view.source.receipt(view.stream_id, reading.at)).mmr_root.hex(),
            "state_hash": reading.state_hash(*part).hex(),
        }
    return field_parser.operation(StateCheckpoint, {**found, **fields})
