"""`veen hub status|health|metrics`."""

import sys
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import command
from veen.cli.hub.hub_group import app
from veen.cli.kit import output
from veen.cli.kit.common_options import HubUrl, JsonOption
from veen.cli.kit.output import Marked, Tone

LocalDir: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="the data directory of a hub on this machine, instead of --hub"),
]


@command(app, "status", "veen hub status --data-dir hub", "veen hub status --hub http://127.0.0.1:37411 --json")
def status(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Show the identity, admission, size and problems of a hub.

    If no hub runs on the data directory, the content of the directory is shown instead.
    """
    from veen.cli.hub import hub_process

    if data_dir is not None and hub_process.find(data_dir) is None and not hub_process.is_locked(data_dir):
        _show_stopped(data_dir, as_json)
        return
    found = hub_process.find(data_dir) if data_dir is not None else None
    with hub_process.hub(hub, data_dir) as api:
        ready, reason, _ = api.readiness()
        answer = api.status()
    data = {"url": api.url, "state": "ready" if ready else reason, "pid": found.pid if found else None, **answer}
    state = Marked("ready", Tone.GOOD) if ready else Marked(reason or "not ready", Tone.BAD)
    rows: dict[str, output.Value] = {"state": state, "url": api.url}
    if found:
        rows["pid"] = found.pid
    output.facts(rows | _rows(answer), as_json, data)


def _rows(answer: dict[str, Any]) -> dict[str, output.Value]:
    """The fields of a status answer that people need, most important first."""
    keys = answer["identity"].get("hub_keys", []) if isinstance(answer["identity"], dict) else []
    admission = str(answer.get("admission"))
    rows: dict[str, output.Value] = {
        "admission": Marked(admission, Tone.WARN) if admission == "open" else admission,
        "labels": answer["labels"],
        "entries": answer["entries"],
        "hub_id": answer["hub_id"],
        "hub_pk": answer["hub_pk"],
        "keys": len(keys) or None,
        "epoch": answer.get("epoch"),
        "hub_ts": output.moment(answer.get("hub_ts")),
        "profile_id": answer.get("profile_id"),
        "version": answer.get("server_version"),
    }
    if answer.get("equivocations"):
        rows["equivocations"] = Marked(str(answer["equivocations"]), Tone.BAD)
    if answer.get("trouble"):
        rows["trouble"] = Marked(str(answer["trouble"]), Tone.BAD)
    return rows


def _show_stopped(data_dir: Path, as_json: bool) -> None:
    from veen.cli.hub import hub_process

    with hub_process.reader(data_dir) as log:
        identity, profile = log.hub_metadata.identity, log.hub_metadata.profile
        sizes = hub_process.sizes(log)
    rows: dict[str, output.Value] = {
        "state": Marked("stopped", Tone.WARN),
        "labels": len(sizes),
        "entries": sum(sizes),
        "hub_id": identity.hub_id,
        "hub_pk": identity.newest.hub_pk,
        "keys": len(identity.hub_keys),
        "profile_id": profile.profile_id(),
        "data_dir": str(data_dir),
    }
    output.facts(rows, as_json)


@command(app, "health", "veen hub health --data-dir hub", "veen hub health && echo ready")
def health(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Check that a hub is alive and accepts messages. The exit status is 6 if it does not."""
    from veen.cli.hub import hub_process
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable

    with hub_process.hub(hub, data_dir) as api:
        ready, reason, states = api.readiness()
    if not ready:
        raise hinted(Unavailable(f"{api.url} is alive but rejects messages: {reason}"), "veen hub status shows more")
    rows: dict[str, output.Value] = {"url": api.url, "ready": Marked("yes", Tone.GOOD)}
    if states:
        rows["bad_states"] = Marked(", ".join(states), Tone.WARN)
    output.facts(rows, as_json, {"url": api.url, "ready": True, "bad_states": list(states)})


@command(app, "metrics", "veen hub metrics --data-dir hub | grep fsync", "veen hub metrics --json")
def metrics(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Print the metrics of a hub in the Prometheus text format."""
    from veen.cli.hub import hub_process

    with hub_process.hub(hub, data_dir) as api:
        text = api.metrics()
    if not as_json:
        sys.stdout.write(text)
        return
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    output.document([{"name": one.name, "labels": one.labels, "value": one.value} for one in samples])
