"""`veen witness`: a service that cosigns the checkpoints of hubs."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing import service_process
from plumbing.cli.command import Misuse, command, group, option
from plumbing.http import tls_context
from plumbing.http.peer_address import is_loopback
from plumbing.json_log import JsonLog, standard_error
from veen.cli.hub import hub_process
from veen.cli.kit import context_file, key_files, output, output_files, pinning, values
from veen.cli.kit.common_options import HubUrl, JsonOption, NoPassphrase, PassphraseFile, Stream
from veen.cli.kit.exit_status import CONTRADICTED_STATUS, hinted, report_error
from veen.cli.kit.hub_api import HubApi
from veen.cli.kit.result import Result
from veen.cli.kit.values import Address
from veen.client import evidence
from veen.client.read_access import ReadSigner
from veen.client.trust import HubRecord
from veen.core import (
    Checkpoint,
    IdentitySignature,
    Limits,
    Profile,
    Refused,
    Unavailable,
    naming,
    strict_json,
    wire_json,
)
from veen.core.cosignature import CosignRequest, Forked, WitnessedLabel
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ConsistencyRequest,
    ProofAtResponse,
    WitnessRequest,
)
from veen.witness import witness_dir
from veen.witness.witness_app import serving
from veen.witness.witness_dir import WitnessDir

app = group(
    "witness",
    """Run a witness, which cosigns the checkpoints of hubs.

    A witness cosigns a checkpoint only if it continues the last one of that label, so a hub cannot show different
    histories to those who trust the witness. Run it on another machine, under another operator than the hub.
    """,
)
WitnessFolder: TypeAlias = Annotated[Path, option("--dir DIR", "the directory of the witness")]
ServedHubs: TypeAlias = Annotated[
    list[str] | None,
    option("--hub HEX|PATH", "a hub to serve: its id, its data directory or identity file"),
]
_DEFAULT_LISTEN = Address("127.0.0.1", 37421)


@command(app, "init", "veen witness init --dir witness", "veen witness init --dir witness --no-passphrase")
def init(
    folder: WitnessFolder,
    passphrase_file: PassphraseFile = None,
    no_passphrase: NoPassphrase = False,
    as_json: JsonOption = False,
) -> None:
    """Create the directory of a new witness, with its key.

    Never restore this directory from a backup: an older copy could cosign a second history. Create a new witness, and
    give its key to those who trusted the old one.
    """
    secret = key_files.passphrase_for_new(passphrase_file, no_passphrase, str(folder))
    try:
        public_key = witness_dir.create(folder, secret)
    except Unavailable as error:
        raise hinted(error, "name a folder that does not exist yet") from None
    Result({"witness_pk": public_key, "dir": str(folder)}).show(as_json)


@command(
    app,
    "run",
    "veen witness run --dir witness --hub 5f1c8a…",
    "veen witness run --dir witness --any-hub --listen 0.0.0.0:37421 --tls-cert w.pem --tls-key w.key",
)
def run(
    folder: WitnessFolder,
    hub: ServedHubs = None,
    any_hub: Annotated[bool, option("--any-hub", "serve every hub that asks, within the limits")] = False,
    listen: Annotated[Address, values.listen_option("127.0.0.1:37421")] = _DEFAULT_LISTEN,
    tls_cert: Annotated[Path | None, option("--tls-cert FILE", "certificate chain in PEM")] = None,
    tls_key: Annotated[Path | None, option("--tls-key FILE", "key of the certificate in PEM")] = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a witness until SIGTERM or SIGINT. The log is on standard error.

    Without TLS use it on this machine only, or behind a proxy. Nothing in requests or answers is secret, and a hub
    verifies every answer.
    """
    if (tls_cert is None) != (tls_key is None):
        raise Misuse("TLS needs a certificate and its key", "give both --tls-cert and --tls-key, or neither")
    tls = tls_context(tls_cert, tls_key) if tls_cert and tls_key else None
    state = _open(folder, hub, any_hub, passphrase_file)
    if tls is None and not is_loopback(listen.host):
        output.remark(f"warning: {listen.host} is reachable from other machines, and there is no --tls-cert")

    async def serve() -> None:
        stopped = asyncio.Event()
        service_process.stop_on_signals(stopped.set)
        log = JsonLog(standard_error(), "witness", "witness")
        async with serving(state, log, listen.host, listen.port, tls) as server:
            url = values.origin("https" if tls else "http", listen.host, server.port)
            output.facts({"url": url, "witness_pk": state.key.public_key, "dir": str(folder)}, as_json)
            sys.stdout.flush()
            service_process.ready(f"serving {url}")
            await stopped.wait()

    try:
        asyncio.run(serve())
    finally:
        state.close()


@command(
    app,
    "cosign",
    "veen witness cosign --dir witness --hub http://127.0.0.1:37411 --pin 5f1c8a… --stream doors",
)
def cosign(
    folder: WitnessFolder,
    pin: Annotated[str, option("--pin HEX|PATH", "the hub: its id, its data directory or identity file")],
    hub: HubUrl = None,
    stream: Stream = None,
    label: Annotated[bytes | None, option("--label HEX", "the label, instead of --stream", parser=values.label)] = None,
    out: Annotated[Path | None, option("--out FILE", "also write the cosigned checkpoint to this file")] = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Cosign the newest checkpoint of a stream, and give the cosignature to the hub.

    With epochs it is that of the newest epoch in which the stream has entries.

    This is for a witness that does not run all the time. The hub must accept its key: veen hub start --witness HEX. No
    other process may use the directory of the witness meanwhile.

    The exit status is 11 if the hub signed another root for the size that the witness holds. The witness keeps both
    checkpoints as evidence, and cosigns nothing.
    """
    state = _open(folder, [pin], False, passphrase_file)
    try:
        with hub_process.hub(hub, None) as api:
            status = api.status()
            identity, signature = (
                api.identity(),
                wire_json.decode(IdentitySignature, strict_json.encode(status["identity_sig"])),
            )
            api.reads = ReadSigner(identity.hub_id, int(status["hub_ts"]), [(state.key, None)])
            profile = wire_json.decode(Profile, strict_json.encode(status["profile"]))
            wanted = label or api.newest_label(naming.stream_id(context_file.need_stream(stream)))
            upto = api.size(wanted)
            if not upto:
                raise Misuse("the label has no entries", "check --stream or --label")
            found = api.post("/v1/checkpoint", CheckpointRequest(wanted, upto), CheckpointResponse).checkpoint
            size, mmr_proof = state.size(identity.hub_id, wanted), None
            if 0 < size <= upto:
                grown = ConsistencyRequest(wanted, size, upto)
                mmr_proof = api.post("/tooling/consistency", grown, ProofAtResponse).mmr_proof
            made = state.cosign(CosignRequest(identity, signature, profile, found, mmr_proof))
            posted = WitnessRequest(wanted, upto, made.witness_pk, made.sig)
            kept = _offered(api, posted)
    except Forked as fork:
        report_error(hinted(fork, f"veen witness show --dir {folder} --evidence DIR writes the evidence into DIR"))
        raise typer.Exit(CONTRADICTED_STATUS) from None
    finally:
        state.close()
    cosigned = replace(found, witness_sigs=(made.sig,))
    if out is not None:
        output_files.write_new(out, cosigned.encode())
    rows = {
        "hub_id": identity.hub_id,
        "label": wanted,
        "upto_seq": upto,
        "mmr_root": found.mmr_root,
        "witness_pk": made.witness_pk,
        "hub": kept,
    }
    Result(rows).show(as_json)


def _offered(api: HubApi, cosigned: WitnessRequest) -> str:
    """Give the cosignature to the hub. The witness holds the checkpoint either way."""
    try:
        api.post("/tooling/witness", cosigned, Checkpoint)
    except Refused as refused:
        return f"did not store the cosignature: {refused.message}"
    return "stored the cosignature"


@command(app, "show", "veen witness show --dir witness", "veen witness show --dir witness --evidence found")
def show(
    folder: WitnessFolder,
    evidence_dir: Annotated[
        Path | None, option("--evidence DIR", "write each proof of a fork as an evidence file")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last size of every cosigned label, and the forks that were refused.

    The evidence files verify offline: veen evidence verify FILE --pin HUB_ID.
    """
    witness_dir.is_encrypted(folder)  # raises if it is no witness
    forks = witness_dir.read_forks(folder)
    rows = [
        {
            "hub_id": hub.identity.hub_id,
            "label": held.label,
            "size": held.size,
            "mmr_root": held.mmr_root,
            "state": _state(held),
        }
        for hub, labels in witness_dir.read_hubs(folder)
        for held in labels
    ]
    Result(rows, columns=("hub_id", "label", "size", "mmr_root", "state")).print(as_json)
    for number, fork in enumerate(forks, 1):
        output.remark(
            f"fork {number}: hub {fork.identity.hub_id.hex()[:16]}… signed two roots of label "
            f"{fork.held.label_curr.hex()[:16]}… at {fork.held.upto_seq}"
        )
        if evidence_dir is not None:
            known = HubRecord(fork.identity, fork.signature, fork.profile, Limits())
            made = evidence.make_evidence(known, "a witness refused the second checkpoint", (fork.held, fork.offered))
            evidence_dir.mkdir(exist_ok=True)
            file = evidence_dir / f"fork-{number}.evidence"
            output_files.write_new(file, made.encode())
            output.remark(f"evidence: {file}")


def _state(held: WitnessedLabel) -> str:
    return "reset" if held.reset is not None else "cosigned"


def _open(folder: Path, hub: list[str] | None, any_hub: bool, passphrase_file: Path | None) -> WitnessDir:
    if any_hub == bool(hub):
        raise Misuse("a witness must know which hubs it serves", "give --hub once for each hub, or --any-hub")
    hubs = None if any_hub else frozenset(_hub_id(one) for one in hub or ())
    passphrase = None
    if witness_dir.is_encrypted(folder):
        passphrase = key_files.passphrase_for_existing(passphrase_file, str(folder))
    return WitnessDir(folder, witness_dir.read_key(folder, passphrase), hubs)


def _hub_id(text: str) -> bytes:
    found = pinning.pinned_key(text)
    assert found is not None
    return found
