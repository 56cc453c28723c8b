"""`veen snapshot`: a state in a file, bound to the root of the log it was computed from."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

from plumbing.cli.command import Misuse, argument, command, group, option
from veen.cli.evidence import NAMED_HUB, UNNAMED_HUB
from veen.cli.fold import PARTS_COLUMNS, OverlayClass, of_class, parts_data
from veen.cli.kit import output_files, pinning
from veen.cli.kit.common_options import JsonOption, TrustEmbedded
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Result
from veen.cli.kit.state_session import ReadSession, read_command
from veen.client import local_files
from veen.core import Malformed, Unverified
from veen.state import state_snapshot
from veen.state.state_snapshot import MAX_SNAPSHOT_BYTES, StateSnapshot
from veen.state.state_view import shown

app = group(
    "snapshot",
    """Write the state of a stream to a file, and verify such a file against a log.

    The file contains the hub's identity, the last entry, the roots that the hub signed there, the state, and its hash.
    """,
)

File: TypeAlias = Annotated[Path, argument("FILE", "a file of veen snapshot make")]
_FACTS = ("class", "stream_id", "hub_id", "label", ("upto_seq", "_upto"), "mmr_root", "state_hash")


@read_command(
    app,
    "make",
    "veen snapshot make --overlay kv --stream settings --out settings.snapshot",
    "veen snapshot make --overlay kv --stream settings --at 100 --data-dir copy --out hundred.snapshot",
)
async def make(session: ReadSession, overlay: OverlayClass) -> Result:
    """Write the state of a stream, now or after an earlier entry, to the file --out.

    The file contains decrypted data of the stream: protect it like the reader key.
    """
    out = session.options.out
    if out is None:
        raise Misuse("missing --out FILE", "give --out FILE, the file to write")
    state = await session.open(of_class(overlay))
    made = await state_snapshot.make(session.view_of(state), state)
    output_files.write_new(out, made.encode(), output_files.SECRET_MODE)
    return Result({**_data(made), "file": str(out)}, facts=(*_FACTS, "file"))


@read_command(
    app,
    "verify",
    "veen snapshot verify settings.snapshot --stream settings",
    "veen snapshot verify settings.snapshot --stream settings --data-dir copy --json",
)
async def verify(session: ReadSession, file: File) -> Result:
    """Verify that a log has the roots of a file and folds to its state."""
    found = _read(file, None)
    view = await session.view(of_class(found.overlay_class), session.stream())
    compared = await state_snapshot.compare(view, found)
    verdict = Marked("the log folds to this state", Tone.GOOD)
    more = {"verdict": verdict, "parts": compared.parts, "file": str(file)}
    return Result({**_data(found), **more}, facts=(*_FACTS, *more))


@command(
    app,
    "show",
    "veen snapshot show settings.snapshot --pin 5f1c8a…",
    "veen snapshot show settings.snapshot --trust-embedded --json",
)
def show(
    file: File,
    pin: Annotated[
        str | None, option("--pin HEX|PATH", "the hub that must have signed it, as for veen evidence verify")
    ] = None,
    trust_embedded: TrustEmbedded = False,
    as_json: JsonOption = False,
) -> None:
    """Verify the signatures and the hash of a file, offline, and show its state.

    Without --pin the verdict is `unverified: no hub was named` and the exit status is 4, as for veen evidence verify.
    This does not prove that the log folds to this state; veen snapshot verify does.
    """
    signer = pinning.hub_signer(pin, trust_embedded)
    found = _read(file, signer.key)
    kind = of_class(found.overlay_class)
    more = {
        "verdict": signer.verdict("signatures and hash are valid"),
        "whose": NAMED_HUB if signer.key else UNNAMED_HUB,
        "file": str(file),
    }
    states = parts_data(kind, found.decode_states(kind))
    Result(
        {**_data(found), **more, "states": states}, facts=(*_FACTS, *more), rows="states", columns=PARTS_COLUMNS
    ).show(as_json)
    signer.check_named(file)


def _read(file: Path, pin: bytes | None) -> StateSnapshot:
    data = local_files.read_file(file, 2 * MAX_SNAPSHOT_BYTES)
    try:
        found = StateSnapshot.decode(data)
        found.verify(pin)
    except (Malformed, Unverified) as error:
        raise hinted(type(error)(str(file), str(error)), "do not rely on the file") from None
    return found


def _data(found: StateSnapshot) -> dict[str, Any]:
    end = found.heads[-1]
    return {
        "class": found.overlay_class,
        "stream_id": found.stream_id,
        "hub_id": found.hub.identity.hub_id,
        "label": end.label,
        "upto_seq": found.end().stream_seq,
        "mmr_root": end.mmr_root,
        "state_hash": found.state_hash,
        "epoch": found.end().epoch,
        "_upto": shown(found.end()),
    }
