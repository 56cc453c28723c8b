"""`veen retention`: how long a hub keeps payloads and receipts, what it prunes, and the proof of that."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from plumbing.cli.command import Misuse, command, group, option
from veen.cli.kit import key_files, values
from veen.cli.kit.common_options import DataDir, HubUrl, JsonOption, LocalDir
from veen.cli.kit.result import Moment, Result
from veen.cli.kit.state_session import Answer
from veen.cli.realm.realm_state import CLASSES, RealmSession, realm_read_command

if TYPE_CHECKING:
    from veen.cli.kit.hub_api import HubApi
    from veen.client import ClientDir
    from veen.core import Receipt
    from veen.core.retention import Hold, RetentionPolicy, RetentionReport, RetentionRules
    from veen.overlays import FoldStep

app = group("retention", "Keep payloads and receipts for a time, and prove what was pruned.")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_FOREVER = "forever"
_RUN_LIMIT_S = 7 * 86_400.0
_LEVELS = {1: "payloads", 2: "payloads and receipts"}


def duration(text: str) -> int | None:
    """Seconds of a duration such as 90d; None for `forever`."""
    found = re.fullmatch(r"(\d{1,12})([smhdwy]?)", text)
    if text == _FOREVER:
        return None
    if not found:
        raise ValueError(f"{text!r} is not a duration: give 3600, 36h, 90d, 10y or {_FOREVER}")
    return int(found[1]) * _UNITS[found[2] or "s"]


StreamName = Annotated[str | None, option("--stream NAME", "a stream, by name or 64 hex digits")]
LabelOption = Annotated[bytes | None, option("--label HEX", "one label", parser=values.label)]
Reason = Annotated[str, option("--reason TEXT", "why; it is logged and public")]


@command(
    app,
    "set",
    "veen retention set --payloads 90d --receipts 2y --data-dir hub",
    "veen retention set --stream doors --payloads 10y --data-dir hub",
    "veen retention set --stream doors --payloads forever --data-dir hub",
)
def set_(
    payloads: Annotated[str, option("--payloads TIME", "keep payloads for so long: 3600, 36h, 90d, 10y, forever")],
    receipts: Annotated[
        str, option("--receipts TIME", "keep receipts for so long; at least as long as payloads", default=_FOREVER)
    ] = _FOREVER,
    stream: StreamName = None,
    label: LabelOption = None,
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    as_json: JsonOption = False,
) -> None:
    """Set how long a hub keeps payloads and receipts.

    A policy is for one stream or label, or the default.

    The hub logs the policy on its control stream. Nothing is deleted until `veen retention run`. The policy of a label
    has priority over the policy of its stream, which has priority over the default. Checkpoints are kept for ever.
    `veen retention set-classes` sets the policies of labels from their classes.

    It needs the token in VEEN_OPERATOR_TOKEN that the hub was started with.
    """
    from veen.core.retention import RetentionPolicy

    keep, keep_receipts = _seconds("--payloads", payloads), _seconds("--receipts", receipts)
    if keep_receipts is not None and (keep is None or keep_receipts < keep):
        raise Misuse("receipts must be kept for at least as long as payloads", "give a longer --receipts")
    policy = RetentionPolicy(keep, keep_receipts, label, _stream_id(stream, label))
    with _api(hub, data_dir) as (api, token):
        from veen.core.envelopes import SubmitResponse

        receipt = api.post("/tooling/retention/policy", policy, SubmitResponse, token).receipt
    Result(_policy_row(policy) | _logged(receipt)).show(as_json)


@realm_read_command(
    app,
    "set-classes",
    "veen retention set-classes --writer admin --data-dir hub --client admin",
    "veen retention set-classes --writer 5f1c8a… --receipts 10y --client admin",
)
async def set_classes(
    session: RealmSession,
    writer: Annotated[
        list[str], option("--writer CARD|HEX", "who may classify: a card, a client directory or client_id")
    ],
    receipts: Annotated[
        str, option("--receipts TIME", "keep receipts for so long, or as long as payloads", default=_FOREVER)
    ] = _FOREVER,
    replace: Annotated[
        bool, option("--replace", "replace policies of the operator, and remove those that follow from no class")
    ] = False,
) -> Answer:
    """Set the policy of every label from the retention hint of its class.

    A hub does not act on label classes. This command reads them as a client, and sets a policy for each label whose
    class has a retention hint: payloads are kept for that time. Only entries of --writer count, because the classes
    decide what is deleted: entries of others are listed and ignored.

    A label that has this policy already is left alone. Without --replace, so is one for which `veen retention set`
    set another policy, for the label or its stream, and one whose policy follows from a class that is gone or has no
    hint any more. Run the command again when classes change, and when an epoch has begun: a class is for the label of
    one epoch. `veen retention plan` shows the effect.

    It needs the token in VEEN_OPERATOR_TOKEN that the hub was started with.
    """
    from veen.cli.hub import hub_process
    from veen.cli.hub.hub_settings import operator_token
    from veen.core.envelopes import SubmitResponse
    from veen.core.retention import RetentionPolicy, RetentionRules

    token, keep_receipts = operator_token(), _seconds("--receipts", receipts)
    state = await CLASSES.open(session)
    steps = [step for label in sorted(state.reading.states) for step in state.reading.history(label)]
    allowed = _client_ids(session.folder, writer, {step.entry.client_id for step in steps})
    counted = {step.part: step for step in steps if step.entry.client_id in allowed}  # the last one of each label
    others = {(step.part, step.entry.client_id): step for step in steps if step.entry.client_id not in allowed}
    data: list[dict[str, Any]] = []
    with hub_process.hub(session.options.hub, session.data_dir) as api:
        rules = api.get("/tooling/retention", RetentionRules, token)
        operators = _operator_policies(api, token, rules)
        derived = {one.label: one for one in rules.policies if one.label is not None and one.label_class is not None}

        def post(policy: RetentionPolicy) -> None:
            api.post("/tooling/retention/policy", policy, SubmitResponse, token)

        for label, step in counted.items():
            row = _class_row(step)
            class_, keep = row["class"], row["payloads"]
            if keep is not None:
                keep_signed = None if keep_receipts is None else max(keep, keep_receipts)
                policy = RetentionPolicy(keep, keep_signed, label, label_class=class_)
                if derived.get(label) == policy:
                    row["policy"] = "unchanged"
                elif label in operators and not replace:
                    row["policy"] = "kept: set by the operator"
                else:
                    post(policy)
                    row["policy"] = "set"
            data.append(row)
        followed = {row["label"] for row in data if row["payloads"] is not None}
        for label, policy in sorted(derived.items()):
            if label in followed:
                continue
            if replace:
                post(RetentionPolicy(label=label))
            gone = {"label": label, "class": policy.label_class, "payloads": policy.payload_sec, "writer": None}
            data.append(gone | {"policy": "removed" if replace else "kept: no class has this hint"})
    data += [_class_row(step) | {"policy": "ignored: not a --writer"} for step in others.values()]
    columns = ("label", "class", "payloads", "writer", "policy")
    kept = any(row["policy"].startswith("kept") for row in data)
    remarks = ("veen retention set-classes --replace replaces or removes the policies that were kept",) if kept else ()
    answer = {"realm_id": state.realm_id, "labels": data}
    return Answer(answer, rows="labels", columns=columns, remarks=remarks)


def _class_row(step: "FoldStep") -> dict[str, Any]:
    event: Any = step.event
    shown = {"label": step.part, "class": event.class_, "payloads": event.retention_hint}
    return shown | {"writer": step.entry.client_id, "policy": "no hint"}


def _client_ids(folder: "ClientDir", writers: list[str], wrote: set[bytes]) -> set[bytes]:
    """The client_ids of these writers. An own identity has all of `wrote` that it used; a card has those it lists."""
    found: set[bytes] = set()
    for text in writers:
        client_id = values.hex_id(text)
        if client_id is not None:
            found.add(client_id)
            continue
        card = key_files.read_confirmed_card(Path(text))
        for one in (card, *folder.cards_of(card, wrote)):
            found.update(one.client_ids)
    return found


def _operator_policies(api: "HubApi", token: str, rules: "RetentionRules") -> set[bytes]:
    """The labels for which the operator set a policy: by name, or for their stream."""
    found = {one.label for one in rules.policies if one.label is not None and one.label_class is None}
    streams = [one.stream_id for one in rules.policies if one.label is None and one.stream_id is not None]
    return found.union(*(api.labels(stream_id, token) for stream_id in streams)) if streams else found


@command(app, "show", "veen retention show --data-dir hub", "veen retention show --hub https://hub.example --json")
def show(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Show the policies and legal holds in force."""
    from veen.cli.hub import hub_process
    from veen.core.retention import RetentionRules

    with hub_process.hub(hub, data_dir) as api:
        rules = api.get("/tooling/retention", RetentionRules)
    data = [{"rule": "keep", **_policy_row(one), "reason": None} for one in rules.policies]
    empty = {"payloads": None, "receipts": None, "class": None}
    data += [{"rule": "hold", **_scope(one), **empty, "reason": one.reason} for one in rules.holds]
    columns = ("rule", "scope", "payloads", "receipts", "class", "reason")
    remarks = () if data else ("no policy and no hold: this hub keeps everything",)
    Result({"rules": data}, rows="rules", columns=columns, remarks=remarks).show(as_json)


@command(app, "plan", "veen retention plan --data-dir hub", "veen retention plan --label 5b1e… --json")
def plan(label: LabelOption = None, hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Show what a run would prune now, and how many bytes. Nothing is deleted."""
    _run(label, None, None, None, hub, data_dir, as_json, dry=True)


@command(app, "run", "veen retention run --data-dir hub", "veen retention run --label 5b1e… --json")
def run(label: LabelOption = None, hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Prune what the policies allow, and wait for the end.

    The hub logs each prune on its control stream before it deletes anything. Only closed chunks are pruned. Payloads
    and client signatures are deleted first, the hub's signatures in receipts later. Places, times, client ids, hashes,
    proofs and checkpoints stay, and the manifest of each label proves which entries were pruned. A run that is
    interrupted loses nothing, and the next one completes it.
    """
    _run(label, None, None, None, hub, data_dir, as_json, dry=False)


@command(
    app,
    "erase",
    "veen retention erase --stream doors --from 100 --to 120 --reason 'request 17' --data-dir hub",
    "veen retention erase --stream doors --epoch 3 --from 1 --to 9 --reason 'form 17' --data-dir hub",
    "veen retention erase --coid 5b1e… --reason 'request 17' --data-dir hub",
)
def erase(
    reason: Reason,
    first: Annotated[int | None, option("--from N", "the first entry", min=1)] = None,
    last: Annotated[int | None, option("--to N", "the last entry", default="--from", min=1)] = None,
    stream: StreamName = None,
    epoch: Annotated[int | None, option("--epoch N", "the epoch of these entries of --stream", min=0)] = None,
    label: LabelOption = None,
    coid: Annotated[
        bytes | None, option("--coid HEX", "an attachment, as `veen stream --json` lists it", parser=values.coid)
    ] = None,
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    as_json: JsonOption = False,
) -> None:
    """Delete payloads of entries, or an attachment, now, whatever the policies say.

    The hub deletes whole chunks: all payloads of every closed chunk with one of these entries. It cannot see which
    attachments these entries have: someone who can open them names each by its coid, with --coid. `veen retention show`
    lists the holds, which prevent this. Copies on other machines are not reached.

    Entries are numbered in each epoch from 1. If the stream has entries in several epochs, name one with --epoch.
    """
    if coid is not None:
        if (stream, label, first, epoch) != (None, None, None, None):
            raise Misuse(
                "--coid excludes --stream, --label, --epoch and --from", "erase entries with a command of their own"
            )
        _run(None, None, None, reason, hub, data_dir, as_json, dry=False, coid=coid)
        return
    if first is None:
        raise Misuse("missing --from or --coid", "give the first entry, or the coid of an attachment")
    if (stream is None) == (label is None):
        raise Misuse("give either --stream or --label", "with epochs, give --stream and --epoch")
    if label is not None and epoch is not None:
        raise Misuse("--label excludes --epoch", "a label belongs to one epoch")
    if stream is not None:
        with _api(hub, data_dir) as (api, token):
            label = _label_of(api, token, stream, epoch)
    _run(label, first, last, reason, hub, data_dir, as_json, dry=False)


@command(
    app,
    "hold",
    "veen retention hold --stream doors --reason 'case 2026-17' --data-dir hub",
    "veen retention hold --stream doors --release --reason 'case closed' --data-dir hub",
)
def hold(
    reason: Reason,
    stream: StreamName = None,
    label: LabelOption = None,
    release: Annotated[bool, option("--release", "end the hold")] = False,
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    as_json: JsonOption = False,
) -> None:
    """Set or end a legal hold, which keeps everything of a stream, a label or the hub.

    A hold overrides every policy and every erasure.
    """
    from veen.core.envelopes import SubmitResponse
    from veen.core.retention import Hold

    event = Hold(int(not release), reason, label, _stream_id(stream, label))
    with _api(hub, data_dir) as (api, token):
        receipt = api.post("/tooling/retention/hold", event, SubmitResponse, token).receipt
    Result({**_scope(event), "held": not release, "reason": reason} | _logged(receipt)).show(as_json)


@command(app, "verify", "veen retention verify --data-dir hub", "veen retention verify --data-dir hub --json")
def verify(data_dir: DataDir, as_json: JsonOption = False) -> None:
    """Verify that every missing payload was pruned, and none lost.

    It reads the manifests, the checkpoints, the names of the files and the control stream, but no chunk of another
    label. Each pruned range must be signed in a manifest, and logged before. It works on a running hub, too.
    """
    from veen.storage.retention_check import check_manifests

    rows = check_manifests(data_dir)
    wrong = [one for one in rows if one.faults]
    data = [
        {
            "label": one.label,
            "segments": one.segments,
            "pruned": one.pruned,
            "without_receipts": one.without_receipts,
            "entries": one.entries,
            "unfinished": one.unfinished,
            "faults": list(one.faults),
        }
        for one in rows
    ]
    columns = (
        "label",
        "segments",
        "pruned",
        ("without receipts", "without_receipts"),
        "entries",
        "unfinished",
        "faults",
    )
    remarks = [] if rows else ["nothing was pruned here"]
    if any(one.unfinished for one in rows):
        remarks.append(
            "warning: a logged prune is unfinished; run `veen retention run`. "
            "If that does not help, the manifest is an earlier one"
        )
    shown = Result({"labels": data}, rows="labels", columns=columns, remarks=tuple(remarks), status=1 if wrong else 0)
    shown.show(as_json)


class _api:  # noqa: N801  a context manager that reads like a function
    """The API of a hub, and the operator's token."""

    def __init__(self, hub: str | None, data_dir: Path | None) -> None:
        self._hub, self._data_dir = hub, data_dir

    def __enter__(self) -> "tuple[HubApi, str]":
        from veen.cli.hub import hub_process
        from veen.cli.hub.hub_settings import operator_token

        token = operator_token()
        self._api = hub_process.hub(self._hub, self._data_dir)
        self._api.timeout_s = _RUN_LIMIT_S
        return self._api.__enter__(), token

    def __exit__(self, *error: Any) -> None:
        self._api.__exit__(*error)


def _run(
    label: bytes | None,
    first: int | None,
    last: int | None,
    reason: str | None,
    hub: str | None,
    data_dir: Path | None,
    as_json: bool,
    *,
    dry: bool,
    coid: bytes | None = None,
) -> None:
    from veen.core.retention import RetentionReport, RetentionRequest

    with _api(hub, data_dir) as (api, token):
        request = RetentionRequest(dry, label, first, last, reason, coid)
        report = api.post("/tooling/retention/run", request, RetentionReport, token)
    _show_report(report, as_json, dry=dry)


def _label_of(api: "HubApi", token: str, stream: str, epoch: int | None) -> bytes:
    """The label of a stream in an epoch. Without one, raises `Misuse` if the stream has entries in several."""
    from veen.core import naming

    stream_id = naming.stream_id(stream)
    found = api.epochs(stream_id, token) if epoch is None else []
    if len(found) > 1:
        raise Misuse(
            f"stream {stream!r} has entries in {len(found)} epochs, {found[0]} to {found[-1]}, numbered separately",
            "give --epoch N, or the --label of one epoch; `veen stream --epochs` lists both",
        )
    return naming.label(api.identity().routing_key, stream_id, epoch if epoch is not None else found[0] if found else 0)


def _show_report(report: "RetentionReport", as_json: bool, *, dry: bool) -> None:
    rows = [
        {
            "label": one.label,
            "from_seq": one.start_seq,
            "to_seq": one.end_seq,
            "deletes": _LEVELS[one.level],
            "bytes_before": one.bytes_before,
            "bytes_after": one.bytes_after,
        }
        for one in report.ranges
    ]
    would_free = sum(one.bytes_before - one.bytes_after for one in report.ranges) + report.attachment_bytes
    freed = would_free if dry else report.freed_bytes
    data = {
        "ranges": rows,
        "range_count": report.range_count,
        "freed_bytes": freed,
        "held": report.held_entries,
        "attachments": report.attachments,
        "attachment_bytes": report.attachment_bytes,
        "held_attachments": report.held_attachments,
    }
    columns = (
        "label",
        ("from", "from_seq"),
        ("to", "to_seq"),
        "deletes",
        ("before", "bytes_before"),
        ("after", "bytes_after"),
    )
    text = f"{'would free' if dry else 'freed'} {freed} bytes"
    remarks = [text if rows or freed else "nothing is due"]
    if report.attachments:
        what = "would delete" if dry else "deleted"
        remarks.append(f"{what} {report.attachments} attachments with {report.attachment_bytes} bytes")
    if report.held_attachments:
        remarks.append(f"{report.held_attachments} attachments are due but under a legal hold")
    if report.held_entries:
        remarks.append(f"{report.held_entries} entries are due but under a legal hold")
    Result(data, rows="ranges", columns=columns, remarks=tuple(remarks)).show(as_json)


def _seconds(name: str, text: str) -> int | None:
    try:
        return duration(text)
    except ValueError as error:
        raise Misuse(f"{name}: {error}", "for example 90d") from None


def _stream_id(stream: str | None, label: bytes | None) -> bytes | None:
    from veen.core import naming

    if stream is not None and label is not None:
        raise Misuse("give either --stream or --label, not both", "without either, the rule is for the whole hub")
    return naming.stream_id(stream) if stream is not None else None


def _scope(rule: "RetentionPolicy | Hold") -> dict[str, Any]:
    if rule.label is not None:
        return {"scope": f"label {rule.label.hex()}"}
    return {"scope": f"stream {rule.stream_id.hex()}" if rule.stream_id is not None else "default"}


def _policy_row(policy: "RetentionPolicy") -> dict[str, Any]:
    kept = {"payloads": policy.payload_sec, "receipts": policy.receipt_sec}
    shown = {name: _FOREVER if seconds is None else seconds for name, seconds in kept.items()}
    return {**_scope(policy), **shown, "class": policy.label_class}


def _logged(receipt: "Receipt") -> dict[str, Any]:
    return {"hub_ts": Moment(receipt.hub_ts), "stream_seq": receipt.stream_seq}
