"""Where anchors go to, as options say it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from terminalface.command import Misuse
from veen.cli import values

if TYPE_CHECKING:
    from veen.bridge.anchoring import Backend

KINDS = ("file", "git", "tsa", "hub")
_HINT = "give --to file:PATH, git:REPO[#BRANCH], tsa:URL or hub:URL"

Target: TypeAlias = Annotated[
    str,
    typer.Option("--to", metavar="KIND:WHERE", help="file:PATH, git:REPO[#BRANCH], tsa:URL or hub:URL"),
]
AnchorPin: TypeAlias = Annotated[
    str | None,
    typer.Option("--anchor-pin", metavar="HEX|PATH", help="of a hub that is anchored at: who it must be"),
]
AnchorStream: TypeAlias = Annotated[
    str, typer.Option("--anchor-stream", metavar="NAME", help="of such a hub: the stream there")
]


def target_of(text: str) -> tuple[str, str]:
    """What --to names: a kind, and where."""
    kind, _, where = text.partition(":")
    if kind not in KINDS or not where:
        raise Misuse(f"{text!r} names no place for anchors", _HINT)
    if kind != "hub":
        return kind, where
    try:
        return kind, values.url(where)
    except ValueError as error:
        raise Misuse(str(error), _HINT) from None


@dataclass(frozen=True, slots=True)
class Targets:
    """What the options say of a backend."""

    to: str
    tsa_root: Path | None
    remote: str | None
    anchor_pin: str | None
    anchor_stream: str

    def check(self) -> None:
        """Refuse before the work what cannot be."""
        kind, _ = target_of(self.to)
        if kind == "tsa" and self.tsa_root is None:
            raise Misuse("a time stamp cannot be verified without its root", "give --tsa-root PEM")
        if self.remote is not None and kind != "git":
            raise Misuse("--remote is of git", "leave it out, or give --to git:REPO")

    def backend(self) -> "Backend":
        """Of every kind but a hub, which must be met first."""
        kind, where = target_of(self.to)
        if kind == "file":
            return _file(Path(where))
        if kind == "git":
            return _git(where, self.remote)
        assert self.tsa_root is not None
        return _tsa(where, self.tsa_root)

    @staticmethod
    def verifying(
        kind: str, file: Path | None, git: str | None, tsa_root: Path | None, anchor_pin: str | None
    ) -> "Backend":
        """What an anchor of some kind is held against."""
        from veen.bridge.anchoring.otherhub import OtherHub
        from veen.cli.client import pins

        if kind == "file" and file is not None:
            return _file(file)
        if kind == "git" and git is not None:
            return _git(git, None)
        if kind == "tsa" and tsa_root is not None:
            return _tsa(None, tsa_root)
        pin = pins.anchor(anchor_pin)
        if kind == "hub" and pin is not None:
            return OtherHub(None, pin)
        wanted = {"file": "--file FILE", "git": "--git REPO", "tsa": "--tsa-root PEM", "hub": "--anchor-pin HEX|PATH"}
        raise Misuse(f"it is not known what this anchor of kind {kind!r} is held against", f"give {wanted.get(kind)}")


def _file(path: Path) -> "Backend":
    from veen.bridge.anchoring.filelog import FileLog

    return FileLog(path)


def _git(text: str, remote: str | None) -> "Backend":
    from veen.bridge.anchoring.gitrepo import BRANCH, GitRepo

    path, _, branch = text.partition("#")
    return GitRepo(Path(path), branch or BRANCH, remote)


def _tsa(url: str | None, root: Path) -> "Backend":
    from veen.bridge.anchoring.tsa import TimeStampingAuthority

    return TimeStampingAuthority(url, root)
