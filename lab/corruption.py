"""Corruption faults: durable data changes without any call. No order of writes prevents that.

A script damages files of a hub that is stopped, was killed, or runs, and checks the promise: damage is detected before
anything is signed over it or served, it is named, and it is healed where the log can tell what was there.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lab.disk import Damage, artifact_of
from lab.hostile import recover, rotate
from lab.promises import Violation
from lab.stage import STREAM, HubPlace, Party, Script, Stage
from veen.client.client import Client
from veen.client.contradiction import Contradiction, Lie
from veen.core import Malformed, Refused, Unavailable, Unverified, VeenError
from veen.storage import fsck
from veen.storage.fsck_report import FsckReport, FsckVerdict

_MAX_STARTS = 4
# Files whose damage nothing else contradicts. `docs/lab.md` has the reasons. Journal and mark are excused as a whole:
# the script does not tell filler and padding from the rest, and relies on the check that every receipt is still there.
UNNOTICED = (
    "hub-clock.json",
    "scrub.json",
    "fault.txt",
    "admission.json",
    "format.json",
    "control.seed",
    "journal.mark",
)


def _may_go_unnoticed(path: Path, kind: Damage) -> bool:
    # An upload without a label has no record. Without its record an attachment is kept, and an older one is sound, too.
    is_older = path.parent.name == "uploads" and kind in (Damage.MISSING, Damage.ROLLED_BACK)
    return path.name in UNNOTICED or path.suffix == ".wal" or is_older


@dataclass(eq=False)
class Harm:
    """The damaged files of one run, with their sound and their damaged content; None is a missing file."""

    sound: dict[Path, bytes] = field(default_factory=dict)
    damaged: dict[Path, bytes | None] = field(default_factory=dict)
    kinds: dict[Path, Damage] = field(default_factory=dict)

    @property
    def artifacts(self) -> set[str]:
        return {artifact_of(path) for path in self.sound}

    def remains(self) -> list[Path]:
        """The files that still have their damaged content. An open chunk that was closed has another name now."""
        found = [path for path, content in self.damaged.items() if _content(path) == content]
        return [path for path in found if not _closed_since(path)]

    def restore(self) -> None:
        """Put the sound bytes back, as from another copy. What was appended since stays.

        A file that the hub has changed otherwise since is left alone: no older copy of it fits any more.
        """
        for path, content in self.sound.items():
            now, damaged = _content(path), self.damaged[path]
            if now == damaged:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
                path.chmod(0o600)
            elif now is not None and damaged and len(damaged) == len(content) and now.startswith(damaged):
                path.write_bytes(content + now[len(damaged) :])

    def __str__(self) -> str:
        return ", ".join(f"{kind} of {path.name}" for path, kind in self.kinds.items())


def _closed_since(path: Path) -> bool:
    stem = path.name.removesuffix("-open.log")
    return stem != path.name and any(path.parent.glob(f"{stem}-[0-9]*"))


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _harm(stage: Stage, hub: HubPlace) -> Harm | None:
    """Damage one file, or two. None if nothing could be damaged."""
    made = Harm()
    by_artifact: dict[str, list[Path]] = {}
    for path in stage.platter.paths():
        if path.is_relative_to(hub.data_dir):
            by_artifact.setdefault(artifact_of(path), []).append(path)
    for _ in range(stage.rng.choice((1, 1, 1, 2))):
        for _ in range(8):
            artifact = stage.rng.choice(sorted(by_artifact))
            path, kind = stage.rng.choice(by_artifact[artifact]), stage.rng.choice(list(Damage))
            if path in made.sound or _is_older_copy(made, artifact, kind):
                continue
            before = path.read_bytes()
            if stage.platter.damage(path, kind, stage.rng):
                made.sound[path], made.damaged[path], made.kinds[path] = before, _content(path), kind
                stage.note(f"{kind} of {path.name}")
                break
    return made if made.sound else None


_JOURNAL = {"journal", "journal mark"}
_BACK = {Damage.ROLLED_BACK, Damage.LOST_WRITE}


def _is_older_copy(made: Harm, artifact: str, kind: Damage) -> bool:
    """Journal and mark of one older moment are an older copy of the directory, which the hub cannot notice."""
    return artifact in _JOURNAL and kind in _BACK and bool(made.artifacts & _JOURNAL)


# Scripts.


def while_stopped(stage: Stage) -> None:
    hub, ann, ben = _begin(stage)
    if stage.rng.random() < 0.5:
        hub.stop()
    else:
        hub.kill()
    harm = _harm(stage, hub)
    if harm:
        with suppress(_Ends):
            _judge(stage, hub, ann, ben, harm)


def while_running(stage: Stage) -> None:
    hub, ann, ben = _begin(stage)
    harm = _harm(stage, hub)
    if harm:
        for party in (ann, ben):
            if hub.runs:
                _use(stage, hub, party, harm)
        hub.stop()
        with suppress(_Ends):
            _judge(stage, hub, ann, ben, harm)


def _begin(stage: Stage) -> tuple[HubPlace, Party, Party]:
    """A hub with every kind of file, and an older version of each."""
    rng = stage.rng
    hub = stage.create_hub(with_root=rng.random() < 0.5, scrub_bytes_per_s=rng.choice((0, 1 << 20)))
    hub.start()
    ann, ben = stage.party("ann"), stage.party("ben")
    ann.send(rng.randrange(2, 9))
    if rng.random() < 0.5:
        attach(stage, ann)
    if rng.random() < 0.7:
        hub.stop()
        if rng.random() < 0.4:
            rotate(stage, hub)
        hub.start()
    ben.send(rng.randrange(1, 9))
    if rng.random() < 0.5:  # the log catches up
        stage.finish(ann.process.spawn(asyncio.sleep(rng.uniform(0.5, 3.0))))
    ann.send(rng.randrange(1, 4))
    if rng.random() < 0.5:
        ben.read()
    return hub, ann, ben


def attach(stage: Stage, party: Party) -> None:
    """Send a message with an attachment."""
    file = stage.place / "attached"
    file.write_bytes(stage.rng.randbytes(3000))
    party.do(lambda client: party.sending(client, 1, attachments=(file,)))


def _use(stage: Stage, hub: HubPlace, party: Party, harm: Harm) -> bool:
    """Write, read and prove. The hub may refuse, or end; what it serves must be right. Returns whether all worked."""

    async def work(client: Client) -> None:
        await client.recover()
        await party.sending(client, 2)
        log = (await party.reading(client)).entries
        for entry in log:
            if entry.attachments:
                await client.attachment(entry, 0)
        end = client.follower(STREAM).tree.size
        await client.proof(STREAM, stage.rng.randrange(end) + 1, end)
        await client.checkpoint(STREAM)

    try:
        party.do(work)
    except Contradiction as error:
        raise Violation(f"after {harm} the hub contradicts itself: {error}") from None
    except (Unavailable, Refused) as error:
        stage.note(f"{party.name}: {error}")
        return False
    except (Unverified, Malformed) as error:
        if error.args and "attachment" in str(error) and "attachment" in harm.artifacts:
            stage.note(f"{party.name}: {error}")  # the hub does not hash attachments: their readers do
            return False
        raise Violation(f"after {harm} the hub serves what does not verify: {error}") from None
    return True


def _judge(stage: Stage, hub: HubPlace, ann: Party, ben: Party, harm: Harm) -> None:
    """Start the hub again and again, heal it as its messages say, and check that nothing acknowledged is lost."""
    report = _checked(stage, hub, harm)
    for _ in range(_MAX_STARTS):
        refusal = _start(stage, hub, harm)
        if refusal is None:
            worked = [_use(stage, hub, party, harm) for party in (ann, ben) if hub.runs]
            hub.stop()
            report = _checked(stage, hub, harm)
            if all(worked) and len(worked) == 2 and report.verdict is FsckVerdict.CLEAN:
                _check_unnoticed(stage, harm, report)
                _check_all_there(stage, hub, ann)
                return
            if hub.ended is not None:
                _check_named(harm, str(hub.ended), report)
        else:
            report = _checked(stage, hub, harm)
            _check_named(harm, str(refusal), report)
        if not _heal(stage, hub, harm, report, refusal):
            _check_recovered(stage, hub, ann, ben)
            return
    raise Violation(f"after {harm} the hub cannot be healed: {report.first}")


def _start(stage: Stage, hub: HubPlace, harm: Harm) -> VeenError | None:
    try:
        hub.start()
    except VeenError as error:
        stage.note(f"refuses to start: {error}")
        return error
    except Exception as error:
        raise Violation(f"after {harm} the start fails with {type(error).__name__}: {error}") from error
    return None


def _checked(stage: Stage, hub: HubPlace, harm: Harm) -> FsckReport:
    try:
        report = stage.fsck(hub)
    except Exception as error:
        raise Violation(f"after {harm} fsck fails with {type(error).__name__}: {error}") from error
    for finding in report.findings[:3]:
        stage.note(f"fsck: {finding.severity}: {finding}")
    return report


def _check_named(harm: Harm, error: str, report: FsckReport) -> None:
    """Whatever stops a hub must name what is wrong, and fsck must find it."""
    if report.first is None:
        raise Violation(f"after {harm} the hub stops with {error!r}, but fsck finds nothing")


def _check_unnoticed(stage: Stage, harm: Harm, report: FsckReport) -> None:
    """Damage that is still there must be in a finding, unless nothing depends on it."""
    found = " ".join(f"{one.artifact} {one.what}" for one in report.findings)
    for path in harm.remains():
        if not _may_go_unnoticed(path, harm.kinds[path]) and path.name not in found:
            raise Violation(f"{harm.kinds[path]} of {path.name} ({artifact_of(path)}) is not noticed")
        stage.note(f"{harm.kinds[path]} of {path.name} changes nothing")


def _heal(stage: Stage, hub: HubPlace, harm: Harm, report: FsckReport, refusal: VeenError | None) -> bool:
    """Do what the documents advise. Returns False if the hub was recovered and lost entries."""
    if report.verdict is FsckVerdict.REPAIRABLE:
        stage.alone(lambda: fsck.repair(hub.data_dir, isolated=False))
        stage.note("repaired")
        return True
    if refusal is not None and harm.artifacts <= _JOURNAL and stage.rng.random() < 0.5:
        recover(stage, hub)
        return False
    before = harm.remains()
    harm.restore()
    stage.note("restored from another copy")
    if not before:
        raise _Ends
    return True


def _check_all_there(stage: Stage, hub: HubPlace, party: Party) -> None:
    hub.start()
    for one in stage.parties:
        one.do(lambda client: client.recover())
    log = party.read()
    stage.ledger.check_complete({log.entries[0].receipt.label: log})
    hub.stop()


def _check_recovered(stage: Stage, hub: HubPlace, ann: Party, ben: Party) -> None:
    """After a recovery, clients with receipts beyond the statement refuse the hub until they accept the loss. D22."""
    hub.start()
    ledger = stage.ledger
    for party in (ann, ben):
        try:
            log = party.do(_read_bodies)
        except Contradiction as error:
            if error.lie is not Lie.RECOVERY:
                raise Violation(f"after a recovery {party.name} reports {error}") from None
            party.do(lambda client: client.accept_recovery(STREAM))
            log = party.do(_read_bodies)
            held = [place for place in ledger.receipts if place[1] > len(log)]
            stage.expect(bool(held), f"{party.name} is told of a loss, but nothing is lost")
    kept = len(log)
    for place, receipt in list(ledger.receipts.items()):
        if place[1] > kept:
            del ledger.receipts[place]
            ledger.places.pop(receipt.leaf_hash, None)
    for party in (ann, ben):
        party.do(lambda client: client.recover())
    hub.stop()
    report = stage.fsck(hub)
    stage.expect(report.verdict is FsckVerdict.CLEAN, f"after a recovery fsck finds {report.first}")


class _Ends(Exception):
    """The damage was found and named, and the hub has changed the file since: no copy of it can be put back."""


async def _read_bodies(client: Client) -> list[bytes | None]:
    return [entry.body async for entry in client.read(STREAM)]


SCRIPTS: dict[str, Script] = {"stopped": while_stopped, "running": while_running}
