"""The file of contexts: named sets of defaults, in the user's configuration folder."""

import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from plumbing.cli.command import Misuse
from veen.cli.kit.exit_status import hinted
from veen.core import Malformed, Unavailable
from veen.storage.durable import PRIVATE_FILE, Disk

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ADD = "veen context add NAME --hub URL keeps one"


@dataclass(frozen=True, slots=True)
class Context:
    """What daily use need not say again."""

    hub: str | None = None
    client: str | None = None
    stream: str | None = None
    cap: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All of them, and which is in use."""

    contexts: dict[str, Context]
    current: str | None = None

    def get(self, name: str) -> Context:
        if name not in self.contexts:
            known = ", ".join(self.contexts) or "none yet"
            raise Misuse(f"there is no context {name!r}", f"there are: {known}")
        return self.contexts[name]

    def with_one(self, name: str, context: Context) -> "Contexts":
        """The first one is in use from then on."""
        if not _NAME.fullmatch(name):
            raise Misuse(f"{name!r} cannot name a context", "use letters, digits, dots, dashes and underscores")
        return Contexts({**self.contexts, name: context}, self.current or name)

    def without(self, name: str) -> "Contexts":
        self.get(name)
        left = {other: context for other, context in self.contexts.items() if other != name}
        return Contexts(left, None if self.current == name else self.current)

    def using(self, name: str) -> "Contexts":
        self.get(name)
        return replace(self, current=name)


def path() -> Path:
    """Where it is, by the XDG rules."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".config"
    return base / "veen" / "contexts.json"


def load() -> Contexts:
    """None at all where there is no file."""
    where = path()
    try:
        return _read(json.loads(where.read_bytes()))
    except FileNotFoundError:
        return Contexts({})
    except OSError as error:
        raise hinted(Unavailable(f"{where} cannot be read: {error.strerror}"), "contexts are kept there") from None
    except ValueError as error:
        raise hinted(Malformed(str(where), f"not a file of contexts: {error}"), f"remove it, then {_ADD}") from None


def save(contexts: Contexts) -> None:
    """Entirely or not at all, for the user alone."""
    where, disk = path(), Disk()
    kept = {name: _given(context) for name, context in contexts.contexts.items()}
    text = json.dumps({"current": contexts.current, "contexts": kept}, indent=2) + "\n"
    disk.make_folder(where.parent)
    disk.write_file(where, text.encode(), PRIVATE_FILE)
    disk.sync_folder(where.parent)


def used_name(contexts: Contexts) -> str | None:
    """Which is in use, by VEEN_CONTEXT or by the last `veen context use`; it need not be there."""
    return os.environ.get("VEEN_CONTEXT") or contexts.current


def selected() -> Context:
    """The context in use, which is empty where none is."""
    contexts = load()
    name = used_name(contexts)
    return Context() if name is None else contexts.get(name)


def need_hub(given: str | None) -> str:
    return _need(given, selected().hub if given is None else None, "--hub URL", "VEEN_HUB")


def need_client(given: Path | None) -> Path:
    kept = selected().client if given is None else None
    return Path(_need(None if given is None else str(given), kept, "--client DIR", "VEEN_CLIENT"))


def need_stream(given: str | None) -> str:
    return _need(given, selected().stream if given is None else None, "--stream NAME", None)


def cap_of(given: Path | None) -> Path | None:
    """The capability to show, if any."""
    kept = selected().cap if given is None else None
    return given if given is not None else Path(kept) if kept else None


def _need(given: str | None, kept: str | None, option: str, variable: str | None) -> str:
    found = given or kept
    if not found:
        others = f", set {variable}, or keep it in a context" if variable else ", or keep it in a context"
        raise Misuse(f"{option} is needed", f"give {option}{others}: {_ADD}")
    return found


def _given(context: Context) -> dict[str, str]:
    return {name: value for name, value in asdict(context).items() if value is not None}


def _read(found: Any) -> Contexts:
    if not isinstance(found, dict) or set(found) != {"current", "contexts"}:
        raise ValueError("it must have current and contexts")
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
        raise ValueError(f"current is {current!r}, which is not there")
    return Contexts(read, current)
