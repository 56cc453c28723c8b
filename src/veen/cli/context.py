"""`veen context`: named sets of hub, client, stream and capability."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from plumbing.cli.command import Misuse, argument, command, group, option
from veen.cli.kit import output, values
from veen.cli.kit.common_options import HubPin, JsonOption

if TYPE_CHECKING:
    from veen.cli.kit.context_file import Context, Contexts

app = group(
    "context",
    """Store hub, client and stream under a name.

    Commands take --hub, --client, --stream and --cap from the current context. Options on the command line come first,
    then VEEN_HUB and VEEN_CLIENT, then the context named by VEEN_CONTEXT, then the one last chosen with
    `veen context use`.
    """,
)


def _names(incomplete: str) -> list[str]:
    from veen.cli.kit import context_file

    return [name for name in context_file.load().contexts if name.startswith(incomplete)]


Name = Annotated[str, argument("NAME", "name of the context", autocompletion=_names)]


@command(
    app,
    "add",
    "veen context add home --hub http://127.0.0.1:37411 --client alice",
    "veen context add doors --hub https://hub.example --client alice --stream doors --use",
    "veen context add site --hub https://10.0.0.7:37411 --client alice --pin hub.pem",
)
def add(
    name: Name,
    hub: Annotated[str | None, option("--hub URL", "URL of the hub", parser=values.url)] = None,
    client: Annotated[Path | None, option("--client DIR", "a client directory")] = None,
    stream: Annotated[str | None, option("--stream NAME", "a stream")] = None,
    cap: Annotated[Path | None, option("--cap FILE", "a file of capabilities")] = None,
    policy: Annotated[Path | None, option("--policy FILE", "a policy file that names witnesses")] = None,
    pin: HubPin = None,
    ca: Annotated[Path | None, option("--ca FILE", "authorities of the hub's TLS certificate, in PEM")] = None,
    tls_cert: Annotated[Path | None, option("--tls-cert FILE", "the client certificate to show, in PEM")] = None,
    tls_key: Annotated[Path | None, option("--tls-key FILE", "its key, if it is in another file")] = None,
    at_once: Annotated[bool, option("--use", "make it the current context")] = False,
    as_json: JsonOption = False,
) -> None:
    """Add a context, or replace the one with this name.

    The pin is for the first contact with the hub, and the certificates are for TLS: VEEN_TLS_CA, VEEN_TLS_CERT and
    VEEN_TLS_KEY name others. Paths are stored as absolute paths, so the context works from any folder.

    The first context becomes the current one. Later ones need --use or `veen context use`.
    """
    from veen.cli.kit import context_file, pinning

    if pin is not None:
        if hub is None:
            raise Misuse("--pin needs the hub that it is for", "give --hub URL")
        pin = _absolute(Path(pin)) if Path(pin).exists() else pin
        pinning.for_hub(str(pin), hub)
    files = map(_absolute, (ca, tls_cert, tls_key))
    made = context_file.Context(hub, _absolute(client), stream, _absolute(cap), _absolute(policy), pin, *files)
    before = context_file.load()
    contexts = before.with_one(name, made)
    if at_once:
        contexts = contexts.using(name)
    context_file.save(contexts)
    _show(name, made, context_file.used_name(contexts) == name, as_json)
    if name in before.contexts:
        output.remark(f"replaced context {name}")
    _remark_if_other(name, contexts)


@command(app, "list", "veen context list", "veen context list --json")
def list_(as_json: JsonOption = False) -> None:
    """List the contexts."""
    from veen.cli.kit import context_file

    found = context_file.load()
    used = context_file.used_name(found)
    columns = ("name", "used", "hub", "client", "stream", "cap")
    rows = [(name, name == used, one.hub, one.client, one.stream, one.cap) for name, one in found.contexts.items()]
    output.table(columns, rows, as_json)
    if not rows and not as_json:
        output.remark("there are no contexts yet: veen context add NAME --hub URL")


@command(app, "use", "veen context use home")
def use(name: Name, as_json: JsonOption = False) -> None:
    """Make a context the current one."""
    from veen.cli.kit import context_file

    contexts = context_file.load().using(name)
    context_file.save(contexts)
    _show(name, contexts.get(name), context_file.used_name(contexts) == name, as_json)
    _remark_if_other(name, contexts)


@command(app, "show", "veen context show", "veen context show home --json")
def show(
    name: Annotated[
        str | None,
        argument("NAME", "name of the context; else the current one", autocompletion=_names),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a context; without NAME, the current one."""
    from veen.cli.kit import context_file

    contexts = context_file.load()
    used = context_file.used_name(contexts)
    shown = name or used
    if shown is None:
        raise Misuse("there is no current context", "veen context add NAME --hub URL adds one")
    _show(shown, contexts.get(shown), shown == used, as_json)


@command(app, "remove", "veen context remove home")
def remove(name: Name, as_json: JsonOption = False) -> None:
    """Remove a context. The hub and the files that it names are not touched."""
    from veen.cli.kit import context_file

    contexts = context_file.load()
    removed = contexts.get(name)
    context_file.save(contexts.without(name))
    _show(name, removed, False, as_json)


def _remark_if_other(name: str, contexts: "Contexts") -> None:
    """Remark if commands still use a context other than `name`."""
    from veen.cli.kit import context_file

    used = context_file.used_name(contexts)
    if used is None or used == name:
        return
    if used == contexts.current:
        output.remark(f"context {used} stays current; veen context use {name} changes that")
    else:
        output.remark(f"context {used} stays current, because VEEN_CONTEXT names it")


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


def _show(name: str, found: "Context", used: bool, as_json: bool) -> None:
    fields = {field: getattr(found, field) for field in found.__slots__}
    output.facts({"name": name, "used": used, **fields}, as_json)
