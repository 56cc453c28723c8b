"""Options of the commands by which a realm is run: its streams follow from its id, so none is named."""

from dataclasses import dataclass, fields
from typing import Annotated, TypeAlias

import typer

from veen.cli.client.options import AtHub
from veen.cli.options import Cap
from veen.cli.overlay.declaring import NoCache, Says, Tells
from veen.cli.values import label, moment, realm


def hub_id(text: str) -> bytes:
    """A hub's id in hex."""
    return _id(text, "the id of a hub")


def schema_id(text: str) -> bytes:
    """A schema's id in hex."""
    return _id(text, "the id of a schema")


def _id(text: str, what: str) -> bytes:
    try:
        return label(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {what}: 64 hex digits") from None


RealmOption: TypeAlias = Annotated[
    bytes | None,
    typer.Option(
        "--realm",
        metavar="NAME|HEX",
        help="the realm, by name or id",
        show_default="the hub's own; where it has none, the one called veen",
        parser=realm,
    ),
]
When: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--when",
        metavar="TIME",
        help="as it is at that time, in seconds since 1970 or as a date",
        show_default="now; with --at, the time of that entry",
        parser=moment,
    ),
]
From: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="since when, in seconds since 1970 or as a date",
        show_default="now",
        parser=moment,
    ),
]


@dataclass(frozen=True, slots=True)
class RealmReads(Tells):
    """Options of a command that tells of a realm. `realm.answer` carries it out."""

    realm: RealmOption = None
    when: When = None


@dataclass(frozen=True, slots=True)
class RealmSays(AtHub):
    """Options of a command that says something for a realm. `realm.say` carries it out."""

    realm: RealmOption = None
    no_cache: NoCache = False
    cap: Cap = None

    def plain(self) -> Says:
        """The same as a command over one stream has them."""
        left_out = ("stream", "blind")
        return Says(**{one.name: getattr(self, one.name) for one in fields(Says) if one.name not in left_out})
