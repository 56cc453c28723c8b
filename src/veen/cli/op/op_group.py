"""`veen op`: send, list and trace operations of the nine profiles, and check their rules."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from plumbing.cli.command import Misuse, argument, command, group, misuse, option
from veen.cli.kit import key_files, open_session, output_files
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.exit_status import VIOLATED_STATUS, hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Moment, Result, inside
from veen.cli.kit.state_session import (
    ENTRY,
    Answer,
    FollowSession,
    ReadSession,
    SendSession,
    SentResult,
    add_faults,
    entry_of,
    follow_command,
    place_data,
    read_command,
    send_command,
)
from veen.cli.op import operation_builder
from veen.client import capabilities, cbor_sequence
from veen.core import Malformed, Unavailable
from veen.overlays import At, FoldEntry, registry
from veen.overlays.operations import check as check_rules
from veen.overlays.operations import violations
from veen.overlays.operations.access import ACCESS, token_of
from veen.overlays.operations.operation_events import (
    AccessGrant,
    Mirror,
    Operation,
    Paid,
    StateCheckpoint,
    operation_id,
)
from veen.overlays.operations.operation_index import (
    BY_NAME,
    OPERATIONS,
    LoggedOperation,
    logged,
    of_kind,
    operations,
    plain,
)
from veen.overlays.operations.operation_index import trace as traced
from veen.overlays.operations.rules import ExternalFacts, FactsFile, LogPlace, Rule, RuleFinding, read
from veen.state.state_view import StateAt, StateView, shown

MIN_DIGITS, ID_DIGITS = 6, 64
OpReading: TypeAlias = StateAt[FoldEntry | None, FoldEntry | None]
OperationId: TypeAlias = Annotated[str, argument("ID", "the operation: its id, or a unique prefix of it")]

app = group(
    "op",
    """Send operations, trace what they refer to, and check the rules of their profiles.

    Payments, access, delegated executions, agreements, publications, state checkpoints, recoveries, query audits and
    mirrors: each is an entry of a stream, with an operation id that other operations can name. veen fold --overlay
    paid.operation shows the state of a stream's payments, and likewise for every profile.
    """,
)


@send_command(
    app,
    "send",
    "veen op send access.revoke -f subject_identity=name:bob -f reason=left --stream ops",
    "veen op send query.audit --body @read.json --stream audit",
    "veen op send state.checkpoint -f state_class=kv --stream settings",
    "veen op send federation.mirror --source door.evidence --stream mirrored",
)
async def send(
    session: SendSession,
    kind: Annotated[str, argument("KIND", "the kind of operation; veen op kinds lists them")],
    fields: Annotated[
        list[str] | None, option("--field -f NAME=VALUE", "a field; again for each item of a list")
    ] = None,
    body: Annotated[str | None, option("--body JSON|@FILE", "all fields, as a JSON object")] = None,
    source: Annotated[
        Path | None, option("--source FILE", "federation.mirror: evidence of the message to mirror")
    ] = None,
    source_pin: Annotated[
        str | None, option("--source-pin HEX|PATH", "federation.mirror: the hub that must have signed it")
    ] = None,
) -> SentResult:
    """Send an operation, unless the state rejects it, and verify the hub's receipt.

    An identity, an account or a reference is 64 hex digits, or name: and a name to hash; a stream is given by its name.
    Free-form fields are JSON, and text after hex: is bytes. An operation is committed once it has a receipt, not
    before. A mirror record is made from verified evidence only. Fields that a state.checkpoint leaves out are filled in
    from the log.
    """
    operation_type = operation_builder.kind_of(kind)
    given = operation_builder.parse_fields(operation_type, fields or [], body)
    mirrored = operation_builder.verify_source(operation_type, given, source, source_pin)
    overlay = operation_builder.overlay_of(operation_type)
    if mirrored is not None:
        event: Operation = operation_builder.mirror(mirrored, given, await session.view(overlay, session.stream()))
    elif operation_builder.needs_log(operation_type, given):
        event = await operation_builder.checkpoint(given, await session.view(overlay, session.stream()))
    else:
        event = operation_builder.operation(operation_type, given)
    parent_id = event.source_leaf_hash if isinstance(event, Mirror) else None  # the message that is mirrored
    expires_in = event.ttl_seconds if isinstance(event, Paid) else None
    sent = (await session.send(overlay, event, {}, parent_id=parent_id, expires_in=expires_in)).event
    named = operation_type.NAME.removesuffix(".v1")
    return session.sent(sent, {"kind": named, "operation_id": operation_id(sent.msg_id)})


@read_command(app, "list", "veen op list --stream ops", "veen op list --kind paid.operation --at 100 --json")
async def list_(
    session: ReadSession,
    kinds: Annotated[list[str] | None, option("--kind KIND", "only this kind", default="all kinds")] = None,
) -> Answer:
    """List the operations of a stream, in log order."""
    wanted = {operation_builder.kind_of(kind) for kind in kinds or ()}
    state = await session.open(OPERATIONS)
    found = [one for one in operations(state.states.values()) if not wanted or type(one.event) in wanted]
    return Answer(
        {"operations": [_data(one) for one in found]},
        rows="operations",
        columns=(ENTRY, ("operation", "operation_id"), "kind", "hub_ts", "parent", "body"),
        parts=tuple(one.operation_id for one in found),
    )


@read_command(app, "show", "veen op show 3f7a0c… --stream ops", "veen op show 3f7a0c… --prove --out paid.evidence")
async def show(session: ReadSession, operation: OperationId) -> Answer:
    """Show one operation: its fields, its sender and its place."""
    one = found(await session.open(OPERATIONS), operation)
    data = _data(one)
    header = ("operation_id", "kind", ENTRY, "hub_ts", "client_id", "auth_ref", "msg_id")
    return Answer(data, facts=(*header, *inside("body", data["body"])), parts=(one.operation_id,))


@read_command(app, "trace", "veen op trace 3f7a0c… --stream ops", "veen op trace 3f7a0c… --json")
async def trace(session: ReadSession, operation: OperationId) -> Answer:
    """Show the operations that an operation refers to, and those that refer to it.

    The operations it names, directly or indirectly, are listed above it with a negative step; those that name it below.
    """
    state = await session.open(OPERATIONS)
    links = traced(operations(state.states.values()), found(state, operation).operation_id)
    data = [
        {"distance": link.distance, "operation_id": link.operation_id}
        | ({"found": False} if link.found is None else {"found": True, **_data(link.found)})
        for link in links
    ]
    missing = Marked("not in this stream", Tone.WARN)
    columns = (
        ("step", lambda row: f"{row['distance']:+d}" if row["distance"] else "0"),
        ("entry", lambda row: entry_of(row) if row["found"] else None),
        ("operation", "operation_id"),
        ("kind", lambda row: row["kind"] if row["found"] else missing),
        ("body", lambda row: row.get("body")),
    )
    held = tuple(link.operation_id for link in links if link.found is not None)
    return Answer({"trace": data}, rows="trace", columns=columns, parts=held)


@read_command(
    app,
    "check",
    "veen op check --stream ops",
    "veen op check --stream ops --known domain.json --rule paid.P2 --rule access.A1",
    "veen op check --stream ops --data-dir copy --at 100 --json",
)
async def check(
    session: ReadSession,
    known: Annotated[
        Path | None, option("--known FILE", "facts that are not in the log: policies, and what services did")
    ] = None,
    rules: Annotated[list[str] | None, option("--rule RULE", "only this rule", default="all")] = None,
    every: Annotated[bool, option("--all", "also show the rules that hold; else they are counted")] = False,
) -> Answer:
    """Check the operations of a stream against the rules of their profiles.

    A rule holds for an operation, is violated, or is open if the known facts do not decide it; --known adds facts. The
    exit status is 13 if a rule is violated. A state.checkpoint is compared with the log and with the state folded from
    it.
    """
    wanted = rules or [str(rule) for rule in Rule]
    unknown = [rule for rule in wanted if rule not in Rule.__members__.values()]
    if unknown:
        raise Misuse(f"there is no rule {unknown[0]!r}", f"the rules are {', '.join(Rule)}")
    checked = await _findings(session, _read_facts(known))
    chosen = tuple(one for one in checked if str(one.rule) in wanted)
    return _check_answer(chosen, every)


@follow_command(app, "capability", "veen op capability 3f7a0c… --issuer operator --cap-out bob.cap --stream ops")
async def capability(
    session: FollowSession,
    operation: OperationId,
    issuer: Annotated[Path, option("--issuer DIR", "the client directory that signs it")],
    cap_out: Annotated[Path, option("--cap-out FILE", "the file to write")],
    card: Annotated[
        Path | None, option("--card DIR|FILE", "the subject's card: a token for each client_id on it")
    ] = None,
) -> Result:
    """Make the capability of an access.grant in the log.

    It has the subject, the streams and the rate of the grant. Present it to the hub now with veen cap authorize: then
    it expires together with the grant. An access.revoke names its auth_ref. A revoked or expired grant gives no
    capability. If the subject is a long-term key, --card names its client ids.
    """
    output_files.check_new(cap_out)
    state = await session.open(OPERATIONS)
    grant = found(state, operation).event
    if not isinstance(grant, AccessGrant):
        raise Misuse(f"{operation} is not an access.grant", "veen op list --kind access.grant lists them")
    access = await session.open_other(ACCESS, session.stream())
    if not any(one.grant == grant for one in access.state(grant.subject_identity).grants):
        raise hinted(Unavailable("the grant was revoked"), "veen fold --overlay access.grant shows the valid grants")
    opened = open_session.open_client_dir(issuer, session.options.passphrase_file)
    with misuse("send a grant with a later expiry_time"), opened as folder:
        key = folder.identity.id_sign
        tokens = [token_of(grant, key, state.now, client_id) for client_id in _clients(grant, card)]
        hub_id = (await session.source()).known.identity.hub_id
        issued = capabilities.present(key, tokens, [hub_id], grant.expiry_time - 1)
    output_files.write_new(cap_out, cbor_sequence.encode(issued))
    data = {
        "auth_ref": tokens[0].auth_ref() if len(tokens) == 1 else None,
        "issuer": tokens[0].issuer_pk,
        "subject": grant.subject_identity,
        "tokens": len(tokens),
        "ttl": tokens[0].allow.ttl,
        "hub_id": hub_id,
        "file": str(cap_out),
    }
    return Result({**data, "auth_refs": [token.auth_ref() for token in tokens]}, facts=tuple(data))


def _clients(grant: AccessGrant, card: Path | None) -> tuple[bytes, ...]:
    """The clients that get a token: the subject itself, or the client ids on its card."""
    if card is None:
        return (grant.subject_identity,)
    read = key_files.read_card(card)
    if read.id_sign != grant.subject_identity:
        raise Misuse(f"{card} is not the card of the subject", f"the subject is {grant.subject_identity.hex()}")
    return read.client_ids


add_faults(app, "veen op", lambda session: session.open(OPERATIONS), example=" --stream NAME")


@command(app, "kinds", "veen op kinds", "veen op kinds paid.operation")
def kinds(
    kind: Annotated[str | None, argument("KIND", "only this one, with its fields")] = None, as_json: JsonOption = False
) -> None:
    """List the kinds of operation, or the fields of one."""
    if kind is None:
        rows = [
            {"kind": name, "overlay": operation_builder.overlay_of(event).CLASS, "schema": event.SCHEMA.hex()}
            for name, event in BY_NAME.items()
        ]
        Result(rows, columns=("kind", "overlay", "schema")).show(as_json)
        return
    words = {"Bstr": "64 hex digits, or name: and a name", "Uint": "number", "Text": "text", "ListOf": "list"}
    rows = [
        {
            "field": one.name,
            "value": words.get(type(one).__name__, "any JSON"),
            "when": "optional" if one.optional else "required",
        }
        for one in operation_builder.kind_of(kind).LAYOUT.kinds
    ]
    Result(rows, columns=("field", "value", "when")).show(as_json)


def found(state: OpReading, text: str) -> LoggedOperation:
    """The operation with this id or id prefix."""
    wanted = text.rstrip("…").lower()
    if not MIN_DIGITS <= len(wanted) <= ID_DIGITS or set(wanted) - set("0123456789abcdef"):
        raise Misuse(f"{text!r} is not an operation id", f"give its first {MIN_DIGITS} to {ID_DIGITS} hex digits")
    ids: Iterable[bytes] = [bytes.fromhex(wanted)] if len(wanted) == ID_DIGITS else state.states
    named = [one for one in ids if one.hex().startswith(wanted) and one in state.states]
    if len(named) > 1:
        raise Misuse(f"{len(named)} operations start with {wanted}", "give more digits; --json prints whole ids")
    entry = state.states[named[0]] if named else None
    one = None if entry is None else logged(entry)
    if one is None:
        raise hinted(Unavailable(f"there is no operation {wanted} in this stream"), "veen op list lists all operations")
    return one


def _data(one: LoggedOperation) -> dict[str, Any]:
    placed = {"epoch": one.entry.epoch, "msg_id": one.entry.msg_id, "parent": one.event.parent}
    return {**plain(one), **placed, "hub_ts": Moment(one.entry.hub_ts)}


_TONES = {"holds": Tone.GOOD, "violated": Tone.BAD, "open": Tone.WARN}
_WORDS = {"holds": ("holds", "hold"), "violated": ("is violated", "are violated"), "open": ("is open", "are open")}


async def _findings(session: ReadSession, known: ExternalFacts) -> tuple[RuleFinding, ...]:
    state = await session.open(OPERATIONS)
    view = session.view_of(state)
    listed = operations(state.states.values())
    facts = await _with_states(known, view, listed, session.cached)
    return check_rules(listed, replace(facts, stream_id=view.stream_id))


def _read_facts(known: Path | None) -> ExternalFacts:
    """Read the file of --known."""
    try:
        return read(b"{}" if known is None else known.read_bytes())
    except Malformed as error:
        names = ", ".join(one.name for one in fields(FactsFile))
        raise hinted(
            Malformed(str(known), error.reason), f"give a JSON object with any of the fields {names}"
        ) from None


async def _with_states(
    facts: ExternalFacts, view: StateView[Any, Any], listed: Sequence[LoggedOperation], cached: bool
) -> ExternalFacts:
    """Add the hub's root and our own state at each place that a logged state.checkpoint names."""
    roots: dict[LogPlace, bytes] = {}
    states: dict[tuple[str, bytes, LogPlace], bytes] = {}
    overlays = registry()
    for one, event in of_kind(listed, StateCheckpoint):
        place, at = LogPlace(one.entry.label, event.upto_stream_seq), At(one.entry.epoch, event.upto_stream_seq)
        if not 1 <= event.upto_stream_seq < one.entry.stream_seq:
            continue
        roots[place] = (await view.source.receipt(view.stream_id, at)).mmr_root
        overlay = overlays.of_class(event.state_class)
        if overlay is None:
            continue
        async with (
            StateView(view.source, view.stream_id, overlay, cached=cached) as other,
            other.reading(at) as reading,
        ):
            part = (event.state_id,) if event.state_id in reading.states else ()
            states[event.state_class, event.state_id, place] = reading.state_hash(*part)
    return replace(
        facts, root_at=roots.get, state_at=lambda named, state_id, place: states.get((named, state_id, place))
    )


def _check_answer(found: tuple[RuleFinding, ...], every: bool) -> Answer:
    """The findings, by default those that do not hold. The operations that violate a rule prove it."""
    counts = Counter(str(one.verdict) for one in found)
    data = [
        {
            "rule": str(one.rule),
            "verdict": str(one.verdict),
            "operation_id": one.operation_id,
            "places": [place_data(at) for at in one.places],
            "reason": one.reason,
        }
        for one in found
    ]
    numbers = ((counts[verdict], words) for verdict, words in _WORDS.items() if counts[verdict])
    summary = ", ".join(f"{number} {words[number > 1]}" for number, words in numbers)
    proved = (one.operation_id for one in violations(found) or found if one.operation_id is not None)
    return Answer(
        {
            "findings": data,
            "counts": {verdict: counts[verdict] for verdict in _WORDS},
            "_shown": [row for row in data if every or row["verdict"] != "holds"],
        },
        rows="_shown",
        columns=(
            "rule",
            ("verdict", lambda row: Marked(row["verdict"], _TONES[row["verdict"]])),
            ("entry", lambda row: ", ".join(shown(At(**at)) for at in row["places"])),
            ("operation", "operation_id"),
            "reason",
        ),
        parts=tuple(dict.fromkeys(proved)),
        remarks=(summary or "this stream has no operations",),
        status=VIOLATED_STATUS if violations(found) else 0,
    )
