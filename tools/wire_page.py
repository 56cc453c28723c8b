"""Generate `docs/wire.md` from the field tables of `veen.core` and of evidence: the layout of every wire object.

python -m tools.wire_page            write the page
python -m tools.wire_page --check    fail if the page on disk is out of date
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from tools.wire_head import HEAD
from veen.client import Card, Prekey, evidence
from veen.client.trust import KeyHistory
from veen.core import (
    admin,
    attachment,
    cap_token,
    checkpoint,
    ciphertext,
    control_stream,
    cosignature,
    dleq,
    envelopes,
    handover,
    hub_identity,
    msg,
    passphrase,
    profile,
    proof,
    proof_of_work,
    read_proof,
    receipt,
    recovery,
    retention,
    root_key,
)
from veen.core import limits as bounds
from veen.core.cbor import (
    Array,
    Bool,
    Bstr,
    Bytes,
    Constant,
    Details,
    FieldType,
    Layout,
    ListOf,
    Map,
    Nested,
    Text,
    Uint,
    VersionField,
    Wire,
    decode,
)
from veen.core.hashing import U64_MAX
from veen.query import result_evidence
from veen.query.audit_events import ANSWERED, REQUESTS, RESULTS, SUBMITTED
from veen.query.digest import VERSION

PAGE = Path(__file__).parents[1] / "docs" / "wire.md"

GROUPS: dict[str, tuple[ModuleType | type[Wire], ...]] = {
    "Wire objects": (profile, msg, ciphertext, receipt, checkpoint),
    "Capability": (cap_token,),
    "Proof": (proof, dleq),
    "Envelopes and tooling": (envelopes, attachment),
    "Witnesses": (cosignature,),
    "Admin streams and proof of work": (admin, proof_of_work, read_proof),
    "Files": (hub_identity, handover, root_key, passphrase, recovery),
    "Retention": (retention,),
    "Epochs": (control_stream,),
    "Evidence": (evidence, KeyHistory, Prekey, Card),
    "Query results": (result_evidence,),
}

GROUP_NOTES = {
    "Files": "`hub-identity.json` and `hub-identity.sig` of a hub's data directory, in canonical JSON.\n"
    "`profile.json`, `limits.json` and `admission.json` are the profile, the limits and the admission settings above\n"
    "in the same form, `hub-key-map.json` an object of `key_id` to the `hub_pk` of each signing key, `format.json`\n"
    "one of `format` to the number of the format of the directory.\n"
    "`origin.cbor` of a fork is in CBOR; objects with text keys in it keep the order of their table. Root\n"
    "requests and endorsements are in canonical JSON; a root key file is a `keystore` in CBOR that encrypts a\n"
    "`root secret`.",
    "Evidence": f"""\
A file of at most {evidence.MAX_EVIDENCE_BYTES:,} bytes. A verifier checks in this order. A file that fails a check
proves nothing.

1. The file decodes. `identity` contains the pin: it is the `hub_id`, or H(`hub_pk`) of one of the keys. The chain of
   endorsements and `signature` verify. Without a pin nothing is proved, whatever the other checks say.
2. Each record that names an `origin` has it: `origin` in the file is the one whose digest the record contains, and so
   on along `hubs`, each of which is verified like `identity`. The last record names none.
3. A key of the hub signed each of `receipts` and `checkpoints`, and was active: at `hub_ts`, or at any time of the
   checkpoint's epoch, or, without epochs, at any time. Entries up to the checkpoint of their label in `origin` belong
   to that hub.
4. Each of `ties` is an inclusion proof of a receipt in this file, in the tree of a receipt or checkpoint in this file.
5. No message is disclosed with two secrets. If the verifier names reader keys, each opening is for one of them and has
   a `proof`.
6. Each of `exhibits` has the profile of the file and a receipt in it, for its leaf and place. `ct_hash` and `sig`
   verify. If there is an `opening`, its `proof` verifies, if it has one, and the ciphertext opens.
7. The `peaks` of each tree are as many as its size has set bits, and lead to a signed root of that size.
8. The identity signed each of `writers` and each prekey in it; its client_ids signed the `confirmations`. No client_id
   confirms two identities. If the verifier names writers, each client_id of `exhibits` confirms one of them.
9. `rival` verifies for the same `hub_id`. `recovery` verifies and shows the size of the label of each receipt.
10. If the verifier requires a number of witnesses, then for each of `receipts` that many of them signed a checkpoint
    whose log contains the entry: by one of `ties`, or as its last entry. Without receipts, they signed one of
    `checkpoints`. This is not checked if the file proves a contradiction, or shows a conflict under a retired key.

A verifier that knows another record of the hub uses the longer one for the keys and their times; one must continue the
other, unless they are of different incarnations. No key in these records or in those of `origin` counts as a witness.

The file then proves a contradiction of the hub if two statements of one label and size have different roots or leaves;
if a root does not follow from `peaks` and the next leaf; if one leaf has two places; if `hub_ts` decreases along a
label, or differs for one place; if messages of one client are not in the order of `client_seq`; if a key, or one before
it, signed a longer log than it handed over in a valid cover; or if neither of `identity` and `rival` continues the
other, unless one of them begins another incarnation. A statement is *dated* if its key is the newest, or if its root,
and the leaf of a receipt, are confirmed by a cover, by a statement of a later key, or by a checkpoint that a witness of
the verifier signed. No key of the hub is a witness. Nothing confirms `hub_ts`: if times conflict, only the newest key
dates a receipt. Nothing in a file dates a statement for a longer log than its key handed over: the later key and the
witnesses may have signed that log first. Other conflicts convict the hub only if every statement in them is dated. To a
conflict about `peaks` belongs the statement with their root; if there are several, one that is dated.""",
    "Query results": f"""\
A file of at most {evidence.MAX_EVIDENCE_BYTES:,} bytes. A verifier checks in this order.

1. The file decodes. `rows` is an array of objects, and it and `summary` are canonical JSON (RFC 8785) with at most 64
   levels.
2. Each of `parts` verifies as evidence, with the pin, reader keys, writers and witnesses that the verifier names.
3. All parts have the same `identity` and `profile`, and no two parts have different receipts of one place.
4. The first two `exhibits` of the first part are opened, and are events `record.event.v1`: the first of type
   `{SUBMITTED}` on the stream `{REQUESTS}`, the second of type `{ANSWERED}` on
   `{RESULTS}`. An entry is on a stream if a checkpoint in the file has its label and states an epoch in
   which the label is the stream's.
5. The payload of the first is the query, that of the second the digest. There `version` is {VERSION}, `row_count`
   the number of rows, `rows_hash` H(`rows`), `evidence_hash` H(`summary`), `hub_id` that of the parts, `query_id`
   that of the query, `result_id` `r-` and the first 32 hex digits of H(`veen/query/result/` || query),
   `evidence_policy` the `evidence` of the query, and `request_receipt_id`, if it is there, the label in hex, a colon,
   and the place of the first.
6. `summary` has the `mode` of the query. Unless that is `none`, it has its `query_id` and `result_id`; with `full` and
   without `aggregate` it has one event for each row, with the `receipt_id` of the row, if rows have one.
7. For each event in `verified` of `summary` with the `hub_id` of the parts, a receipt in the file has this
   `receipt_id` and `mmr_root`. Its label is in `basis` of the digest, is one of the stream there, and its place is
   not after `seq` there.

This proves what was asked and answered. It does not prove that the rows follow from the events.""",
}

# Rules between the fields of one object, which a table cannot express: one for each class with a `flaw` method.
RULES: dict[type[Wire], str] = {
    Card: "All `client_ids` differ. The numbers of `prekeys` increase. Each `client_id` has one of `confirmations`.",
    receipt.Receipt: "`stream_seq` is at least 1.",
    checkpoint.Checkpoint: "`upto_seq` is at least 1.",
    cap_token.Allow: "`stream_ids` are in strictly ascending order of their bytes.",
    envelopes.Equivocation: "Both receipts have the same `label` and `stream_seq` and differ in `leaf_hash` or "
    "`mmr_root`.",
    hub_identity.HubKey: "`valid_until` is after `valid_from`, `key_id` is that of `hub_pk`, and `role` is absent,\n"
    "`root` or `incarnation`.",
    hub_identity.HubIdentity: "`hub_keys` are sorted by `valid_from`, then `hub_pk`; no `hub_pk` occurs twice; "
    "every key except the first has an\n`endorsement`, and the first has none; at most one key has the `role` "
    "`root`, and it has no `valid_until`; "
    "there is another\nkey; only the key after the root can have the `role` `incarnation`; "
    f"`anchoring` is one of {', '.join(f'`{name}`' for name in hub_identity.ANCHORINGS)}.",
    admin.Revocation: f"`kind` is one of {', '.join(f'`{kind}`' for kind in admin.RevocationKind)}.",
    admin.OperatorRevocation: f"`kind` is one of {', '.join(f'`{kind}`' for kind in admin.RevocationKind)}.",
    envelopes.RevocationRequest: f"`kind` is one of {', '.join(f'`{kind}`' for kind in admin.RevocationKind)}.",
    admin.Authority: f"`policy` is `{admin.AuthorityPolicy.SINGLE_PRIMARY}` "
    f"or `{admin.AuthorityPolicy.MULTI_PRIMARY}`.",
    hub_identity.OriginHub: "`checkpoints` are in strictly ascending order of `label_curr`.",
    retention.Segment: "`artifact_hash`, `pruned_at` and `event_seq` exist exactly if `level` is not 0.\n"
    "`start_seq` is at most `end_seq`.",
    retention.Manifest: "The segments are consecutive, and the first starts with entry 1.",
    retention.Tombstone: "The `level` of the segment is not 0.",
    retention.UploadRecord: "`coid` and `digest` exist together. `digest` is the tagged hash above.",
    retention.RetentionPolicy: "`receipt_sec` exists only with `payload_sec`, and is at least as large.",
    retention.RetentionRequest: "`from_seq` needs `label` and `reason`; `to_seq` needs `from_seq`.",
    control_stream.EpochEnd: "`labels` are in strictly ascending order of `label`.",
    recovery.RecoveredLog: "`labels` are in strictly ascending order of `label`.\n"
    "`recovery.labels` is their number, and `recovery.labels_root` the root of the tree of their leaves.",
    profile.LoweredLimits: "At least one limit is lower in `after`, and none is higher; absent is highest. "
    "Limits that decide\nwhere chunks end or which labels an epoch has do not differ.",
    profile.Limits: f"`max_chunk_bytes` is at least `max_msg_bytes` + {bounds.ENTRY_OVERHEAD_BYTES:,}.",
}


def page() -> str:
    """The current text of the page."""
    lines = [HEAD]
    for title, modules in GROUPS.items():
        lines += [f"## {title}", ""]
        if title in GROUP_NOTES:
            lines += [GROUP_NOTES[title], ""]
        for module in modules:
            for wire in objects(module):
                lines += section(wire)
    return "\n".join(lines).rstrip("\n") + "\n"


def objects(module: ModuleType | type[Wire]) -> list[type[Wire]]:
    """The wire objects that a module defines, in source order."""
    if isinstance(module, type):
        return [module]
    found = [entry for entry in vars(module).values() if isinstance(entry, type) and issubclass(entry, Wire)]
    return [wire for wire in found if wire.__module__ == module.__name__]


def heading(wire: type[Wire]) -> str:
    return f"{wire.LAYOUT.name} (`{wire.__name__}`)"


def anchor(text: str) -> str:
    """The link target of a heading."""
    return "#" + re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


def section(wire: type[Wire]) -> list[str]:
    """Heading, purpose, table and rule of one object."""
    layout = wire.LAYOUT
    keys = keys_of(layout)
    rows = [
        (f"`{key}`" if isinstance(key, str) else key, f"`{kind.name}`", type_of(kind), "yes" if kind.optional else "")
        for key, kind in zip(keys, layout.kinds, strict=True)
    ]
    rule = ["", RULES[wire]] if wire in RULES else []
    purpose = (wire.__doc__ or "").partition("\n")[0]
    first = "position" if isinstance(layout, Array) else "key"
    names = (first, "name", "type", "optional")
    return [f"### {heading(wire)}", "", purpose, "", shape(layout), "", *table(names, rows), *rule, ""]


def keys_of(layout: Layout) -> Sequence[object]:
    """Positions from 1, or the keys of a map."""
    if isinstance(layout, Map):
        return [decode(key) for key in layout._keys]
    return range(1, len(layout.kinds) + 1)


def shape(layout: Layout) -> str:
    """The kind of the object and its number of fields."""
    most = len(layout.kinds)
    least = sum(not kind.optional for kind in layout.kinds)
    count = str(most) if least == most else f"{least} {'or' if most - least == 1 else 'to'} {most}"
    if isinstance(layout, Array):
        return f"A CBOR array of {count} fields."
    if isinstance(keys_of(layout)[0], int):
        return f"A CBOR map with integer keys, {count} entries."
    return f"A canonical JSON object with text keys, {count} entries; in the file they are sorted."


def type_of(kind: FieldType) -> str:
    """A field's type in CBOR terms."""
    match kind:
        case VersionField():
            return f"uint, always {bounds.WIRE_VERSION}"
        case Constant():
            return f"tstr, always `{kind.text}`"
        case Uint():
            return uint(kind)
        case Bool():
            return "bool"
        case Bstr():
            return f"bstr {kind.size}" + (" or null" if kind.nullable else "")
        case Bytes():
            return f"bstr ≤ {kind.most} bytes"
        case Text():
            return f"tstr ≤ {kind.most} bytes"
        case ListOf():
            return f"array of {kind.least} to {kind.most}: {type_of(kind.item)}"
        case Details():
            return f"map of tstr to uint or tstr, keys ascending by encoded bytes, ≤ {bounds.MAX_DETAIL_BYTES} bytes"
        case Nested():
            what = "array" if isinstance(kind.wire.LAYOUT, Array) else "map"
            return f"{what} [{kind.wire.LAYOUT.name}]({anchor(heading(kind.wire))})"
    raise TypeError(f"no description for {type(kind).__name__}")


def uint(kind: Uint) -> str:
    if kind.most < U64_MAX:
        return f"uint {kind.least}..{kind.most}"
    return f"uint ≥ {kind.least}" if kind.least else "uint"


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    head, *body = ["| " + " | ".join(map(str, cells)) + " |" for cells in [names, *rows]]
    return [head, "|---" * len(names) + "|", *body]


def main(arguments: Sequence[str] | None = None, path: Path = PAGE) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.wire_page", description="Write docs/wire.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    if not parser.parse_args(arguments).check:
        path.write_bytes(page().encode())
    elif not path.exists() or path.read_bytes() != page().encode():
        sys.stderr.write(f"veen: error: {path.name} is out of date\nveen: hint: run python -m tools.wire_page\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
