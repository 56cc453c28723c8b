"""The contexts file: named sets of default options, in the user's configuration directory."""

import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from plumbing.cli.command import Misuse
from plumbing.durable import PRIVATE_FILE, Disk
from veen.cli.kit.exit_status import hinted
from veen.core import Malformed, Unavailable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ADD_HINT = "veen context add NAME --hub URL"


@dataclass(frozen=True, slots=True)
class Context:
    """Default values of command options."""

    hub: str | None = None
    client: str | None = None
    stream: str | None = None
    cap: str | None = None
    policy: str | None = None
    pin: str | None = None
    ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts and the name of the current one."""

    contexts: dict[str, Context]
    current: str | None = None

    def get(self, name: str) -> Context:
        if name not in self.contexts:
            known = ", ".join(self.contexts) or "none"
            raise Misuse(f"there is no context {name!r}", f"known contexts: {known}")
        return self.contexts[name]

    def with_one(self, name: str, context: Context) -> "Contexts":
        """Add a context. The first one becomes the current one."""
        if not _NAME.fullmatch(name):
            raise Misuse(f"{name!r} is not a valid context name", "use letters, digits, dots, dashes and underscores")
        return Contexts({**self.contexts, name: context}, self.current or name)

    def without(self, name: str) -> "Contexts":
        self.get(name)
        left = {other: context for other, context in self.contexts.items() if other != name}
        return Contexts(left, None if self.current == name else self.current)

    def using(self, name: str) -> "Contexts":
        self.get(name)
        return replace(self, current=name)


def path() -> Path:
    """Return the path of the file: `$XDG_CONFIG_HOME`, else `~/.config`."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".config"
    return base / "veen" / "contexts.json"


def load() -> Contexts:
    """Read the file; no contexts if it does not exist."""
    where = path()
    try:
        return _read(json.loads(where.read_bytes()))
    except FileNotFoundError:
        return Contexts({})
    except OSError as error:
        raise hinted(
            Unavailable(f"{where} cannot be read: {error.strerror}"),
            "this file stores the contexts; check its permissions",
        ) from None
    except (ValueError, RecursionError) as error:
        raise hinted(
            Malformed(str(where), f"not a contexts file: {error}"), f"remove it, then run {_ADD_HINT}"
        ) from None


def save(contexts: Contexts) -> None:
    """Write the file atomically, readable by the user only."""
    where, disk = path(), Disk()
    stored = {
        name: {field: value for field, value in asdict(context).items() if value is not None}
        for name, context in contexts.contexts.items()
    }
    text = json.dumps({"current": contexts.current, "contexts": stored}, indent=2) + "\n"
    disk.make_folder(where.parent)
    disk.write_file(where, text.encode(), PRIVATE_FILE)
    disk.sync_folder(where.parent)


def used_name(contexts: Contexts) -> str | None:
    """Return VEEN_CONTEXT, else the name from the last `veen context use`. A context of this name may not exist."""
    return os.environ.get("VEEN_CONTEXT") or contexts.current


def selected() -> Context:
    """Return the current context, or an empty one."""
    contexts = load()
    name = used_name(contexts)
    return Context() if name is None else contexts.get(name)


def need_hub(given: str | None) -> str:
    """Return the URL of the hub. That of the context brings the certificates of the context with it."""
    default = selected() if given is None else Context()
    found = _need(given, default.hub, "--hub URL", "VEEN_HUB")
    if found == default.hub and (default.ca or default.tls_cert):
        from veen.client.read_access import TlsFiles, tls_files

        tls_files[found.rstrip("/")] = TlsFiles(default.ca, default.tls_cert, default.tls_key)
    return found


def pin_of(url: str) -> str | None:
    """Return the pin of the context, if its hub has this URL."""
    found = selected()
    return found.pin if found.hub == url else None


def need_client(given: Path | None) -> Path:
    default = selected().client if given is None else None
    return Path(_need(None if given is None else str(given), default, "--client DIR", "VEEN_CLIENT"))


def need_stream(given: str | None) -> str:
    return _need(given, selected().stream if given is None else None, "--stream NAME", None)


def cap_of(given: Path | None) -> Path | None:
    """Return the capability file, if one is given or in the context."""
    default = selected().cap if given is None else None
    return given if given is not None else Path(default) if default else None


def policy() -> Path | None:
    """Return the policy file of the context, if it has one."""
    found = selected().policy
    return Path(found) if found else None


def _need(given: str | None, default: str | None, option: str, variable: str | None) -> str:
    found = given or default
    if not found:
        others = f", set {variable}, or store it in a context" if variable else ", or store it in a context"
        raise Misuse(f"missing {option}", f"give {option}{others}: {_ADD_HINT}")
    return found


def _read(found: Any) -> Contexts:
    if not isinstance(found, dict) or set(found) != {"current", "contexts"}:
        raise ValueError("its fields must be current and contexts")
    contexts, current = found["contexts"], found["current"]
    if not isinstance(contexts, dict):
        raise ValueError("contexts is not an object")
    read = {}
    for name, fields in contexts.items():
        if not isinstance(fields, dict) or not set(fields) <= set(Context.__slots__):
            raise ValueError(f"{name} has unknown fields")
        if not all(isinstance(value, str) for value in fields.values()):
            raise ValueError(f"{name} has a field that is not text")
        read[name] = Context(**fields)
    if current is not None and current not in read:
        raise ValueError(f"current is {current!r}, but there is no such context")
    return Contexts(read, current)
