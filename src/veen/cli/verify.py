"""`veen verify`: verify saved statements of a hub, or a whole stream."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, argument, option, options_command, single
from veen.cli.kit import context_file, open_session, output, output_files
from veen.cli.kit.common_options import Epoch, HubOptions, Policy, Stream
from veen.cli.kit.exit_status import CONTRADICTED_STATUS, hinted
from veen.cli.kit.open_session import HubCall
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.output_files import Statement
from veen.cli.kit.result import Moment, Result
from veen.cli.stream import remark_pruned
from veen.client import evidence
from veen.client.client import Client
from veen.client.evidence import EvidenceStore
from veen.client.proofs import Resynced
from veen.client.stream_epochs import epochs_open, unlisted
from veen.client.trust import read_policy
from veen.core import Checkpoint, Leaf, MmrProof, Receipt, Unavailable, Unverified, naming, proof
from veen.core.cosignature import WitnessPolicy
from veen.core.handover import Cover, Coverage, Dating, Link
from veen.core.hub_identity import lineage
from veen.core.proof import Head, size_of

app = single("verify")
_COLUMNS = ("file", "what", "stream_seq", "hub_ts", "held_by", "coverage")


@options_command(
    HubOptions,
    app,
    "verify",
    "veen verify --stream doors",
    "veen verify 12.receipt 12.proof doors.checkpoint",
    "veen verify --stream doors --start-over",
    "veen verify --stream doors --accept-recovery",
    "veen verify --stream doors --policy witnesses.toml",
)
def verify(
    asked: HubOptions,
    file: Annotated[list[Path] | None, argument("FILE", "saved receipts, proofs and checkpoints")] = None,
    stream: Stream = None,
    start_over: Annotated[
        bool, option("--start-over", "discard what was verified of the stream, and trust a hub again that was caught")
    ] = False,
    accept_recovery: Annotated[
        bool,
        option("--accept-recovery", "continue with a hub that stated the loss of entries which this client verified"),
    ] = False,
    policy: Policy = None,
    epoch: Epoch = None,
) -> None:
    """Verify saved files or a whole stream.

    With --policy, or a policy in the context, enough witnesses must have cosigned: every checkpoint in FILE, or the
    newest cosigned checkpoint of the stream, which must belong to the verified log, and with --accept-recovery also the
    statement of the recovery.

    Files are verified with the hub keys that this client knows; the hub is not contacted. A stream is verified from its
    first entry to its last, in all epochs, against the newest checkpoint of each epoch and everything that this client
    has verified before.

    A signature of a retired key is `covered` if the file connects it with a hand-over or with a signature of a later
    key, as files of `veen receipt --out` do. An `uncovered` one is valid, but a thief of the key could have made it
    since. The exit status is 11 if statements contradict each other.

    A hub that contradicted itself stays caught: every command that needs it fails until --start-over, which releases
    the hub for all its streams. The contradicting statements are kept as evidence.

    A hub that was recovered states how far each label goes. If this client holds later receipts, commands for the
    stream fail until --accept-recovery. The receipts are kept as evidence of what the hub lost.
    """
    call = replace(asked.call(), allow_caught=start_over)
    policy_file = policy or context_file.policy()
    wanted = read_policy(policy_file) if policy_file else None
    if file:
        if start_over or accept_recovery or stream is not None:
            raise Misuse(
                "FILE cannot be used with --stream, --start-over or --accept-recovery",
                "give FILE or --stream, not both",
            )
        _verify_files(call, file, wanted, asked.as_json)
        return
    if start_over and accept_recovery:
        raise Misuse("--start-over and --accept-recovery exclude each other", "give one of them")
    name = context_file.need_stream(stream)

    async def work(client: Client) -> tuple[Verified, Cosigned | None]:
        if accept_recovery:
            await _accept_recovery(client, name, epoch, wanted)
        found = await _verify_stream(client, name, epoch, start_over)
        return found, await _cosigned(client, name, epoch, wanted) if wanted else None

    found, cosigned = call.run(work)
    done = found.newest
    rows = {
        "stream": name,
        **({"epochs": found.epochs} if found.epochs is not None else {}),
        "label": done.label,
        "entries": found.entries,
        "opened": found.opened,
        "mmr_root": done.checkpoint.mmr_root if done.checkpoint else None,
        **({"cosigned": cosigned[0], "cosigned_by": ", ".join(cosigned[1])} if cosigned else {}),
    }
    verified = ("verified", lambda _: Marked("every signature, place and root, and the checkpoint", Tone.GOOD))
    Result(rows, facts=(*rows, verified) if found.entries else None).show(asked.as_json)


async def _accept_recovery(client: Client, stream: str, epoch: int | None, policy: WitnessPolicy | None) -> None:
    lost = await client.accept_recovery(stream, epoch=epoch, policy=policy)
    if lost is None:
        raise hinted(
            Unavailable("the hub states no recovery that this client has to accept"),
            "veen verify --stream NAME without --accept-recovery verifies the stream",
        )
    output.remark(f"accepted: {lost.reason}; the receipts are kept in {lost.evidence}")


Cosigned: TypeAlias = tuple[int, tuple[str, ...]]  # the size of the cosigned log, and the names of the witnesses


async def _cosigned(client: Client, stream: str, epoch: int | None, policy: WitnessPolicy) -> Cosigned:
    found = await client.cosigned(stream, epoch=epoch)
    return found.upto_seq, policy.check(found, *client.session.trust.lineage.identities)


@dataclass(slots=True)
class Verified:
    """The verified parts of a stream."""

    newest: Resynced  # of the last epoch with entries
    epochs: int | None  # None if the hub has no epochs
    entries: int = 0
    opened: int = 0


async def _verify_stream(client: Client, stream: str, epoch: int | None, start_over: bool) -> Verified:
    if start_over:
        caught = client.session.contradictions()
        await client.forget(stream, epoch=epoch)
        if caught:
            output.remark(f"this client trusts the hub again; the evidence stays in {client.dir.evidence}")
    epochs = [epoch] if epoch is not None else await _all_epochs(client, stream)
    done = [await client.resync(stream, epoch=one) for one in epochs]
    has_epochs = bool(client.session.trust.profile.epoch_sec)
    found = Verified(done[-1], sum(bool(one.size) for one in done) if has_epochs else None)
    with output.tally("verifying", "entries", sum(one.size for one in done)) as report:
        for one, synced in zip(epochs, done, strict=True):
            if synced.size:
                async for entry in client.read(stream, 1, synced.size, epoch=one, on_pruned=remark_pruned):
                    found.entries += 1
                    found.opened += entry.body is not None
                    report(found.entries)
    return found


async def _all_epochs(client: Client, stream: str) -> list[int]:
    """The epochs in which the stream has entries; the current one if there is none.

    Raises `Unverified` if the hub's list leaves out an epoch of which it has entries.
    """
    session = client.session
    if not session.trust.profile.epoch_sec:
        return [0]
    over = epochs_open(session)  # before the list: later ones may get their first entry meanwhile
    listed = [row.epoch for row in await client.epochs(stream)]
    left_out = await unlisted(session, naming.stream_id(stream), listed, over)
    if left_out:
        raise hinted(
            Unverified("epoch list", f"the hub has entries in epoch {left_out[0]}, but its list leaves that epoch out"),
            f"veen verify --stream {stream} --epoch {left_out[0]} verifies these entries",
        )
    return listed or [client.epoch()]


def _verify_files(call: HubCall, paths: list[Path], policy: WitnessPolicy | None, as_json: bool) -> None:
    found = [(path, output_files.read_statements(path)) for path in paths]
    heads = tuple(one for _, statements in found for one in statements if isinstance(one, Receipt | Checkpoint))
    covers = tuple(one for _, statements in found for one in statements if isinstance(one, Cover))
    url = call.url()
    with open_session.open_client_dir(call.client, call.passphrase_file) as folder:
        known = open_session.known_hub(folder, url)
        own = [head for head in heads if folder.state.has_signed(known.identity.hub_id, head)]
        line = lineage(known.identity, known.origin)
        links = tuple(link for path, statements in found for link in _links(path, statements))
        dating = Dating(line, known.profile, heads, covers, links, existed=own)
        rows = [row for path, statements in found for row in _verified_rows(path, statements, dating)]
        for head in heads:
            if policy is not None and isinstance(head, Checkpoint):
                policy.check(head, *line.identities)
        wrong = evidence.conflicts(dating)
        for one in wrong:
            made = evidence.make_evidence(known, one.text, one.statements, covers=covers)
            output.remark(f"evidence: {EvidenceStore(folder.evidence, folder.disk).save(made)}")
    Result([dict(zip(_COLUMNS, row, strict=True)) for row in rows], columns=_COLUMNS).print(as_json)
    for one in wrong:
        output.remark(f"{one.retired or 'the hub contradicts itself'}: {one.text}")
    if wrong:
        raise typer.Exit(CONTRADICTED_STATUS)


def _links(path: Path, statements: list[Statement]) -> Iterator[Link]:
    for at, one in enumerate(statements):
        if isinstance(one, MmrProof):
            leaf, head = _proved(path, one, statements[:at])
            yield Link(leaf.stream_seq, size_of(head), one)


def _verified_rows(path: Path, statements: list[Statement], dating: Dating) -> list[tuple[object, ...]]:
    """One row for each statement. Raises at the first that fails."""
    rows: list[tuple[object, ...]] = []
    try:
        for at, one in enumerate(statements):
            if isinstance(one, MmrProof):
                leaf, head = _proved(path, one, statements[:at])
                included = Marked(f"in the log of {size_of(head)}", Tone.GOOD)
                rows.append((str(path), "proof", leaf.stream_seq, None, included, None))
            elif not isinstance(one, Cover):
                identity, key = dating.key_of(one)
                what, at_ts = ("receipt", Moment(one.hub_ts)) if isinstance(one, Receipt) else ("checkpoint", None)
                held = Marked(f"key {identity.signing_keys.index(key) + 1} of the hub", Tone.GOOD)
                coverage = dating.coverage(one)
                shown = Marked(str(coverage), Tone.WARN if coverage is Coverage.UNCOVERED else Tone.GOOD)
                rows.append((str(path), what, size_of(one), at_ts, held, shown))
    except Unverified as error:
        raise hinted(Unverified(str(path), str(error)), "do not rely on it; check that it is from this --hub") from None
    return rows


def _proved(path: Path, found: MmrProof, before: list[Statement]) -> tuple[Receipt, Head]:
    """A proof connects the receipt of its leaf to the last signed root before it in the file."""
    heads = [one for one in before if isinstance(one, Receipt | Checkpoint)]
    leaves = [one for one in heads if isinstance(one, Receipt) and one.leaf_hash == found.leaf_hash]
    try:
        if not leaves:
            raise Unverified("proof", "the file has no receipt for its leaf before it")
        proof.verify_inclusion(found, Leaf.of(leaves[-1]), heads[-1])
    except Unverified as error:
        raise hinted(Unverified(str(path), str(error)), "do not rely on it; check that it is from this --hub") from None
    return leaves[-1], heads[-1]
