"""Options of the commands by which a realm is run: its streams follow from its id, so none is named."""

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Annotated, TypeAlias

import typer

from veen.cli.client.options import FirstUse, HubPin, PassphraseFile
from veen.cli.options import Cap, ClientDir, HubUrl, JsonOption
from veen.cli.overlay.declaring import AtOption, FromDirectory, NoCache, ProofFile, Prove, Reads, Says
from veen.cli.values import label, realm

_MOST = 1 << 64


def moment(text: str) -> int:
    """A time: seconds since 1970, or a date like 2030-01-31 or 2030-01-31T12:00:00Z."""
    if text.isascii() and text.isdigit():
        found = int(text)
    else:
        try:
            read = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is neither seconds since 1970 nor a date like 2030-01-31T12:00:00Z") from None
        found = int((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp())
    if not 0 <= found < _MOST:
        raise ValueError(f"{text!r} is not a time that can be written")
    return found


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
class RealmReads:
    """Options of a command that tells of a realm. `realm.answer` carries it out."""

    realm: RealmOption = None
    when: When = None
    at: AtOption = None
    prove: Prove = False
    out: ProofFile = None
    data_dir: FromDirectory = None
    no_cache: NoCache = False
    hub: HubUrl = None
    client: ClientDir = None
    pin: HubPin = None
    first_use: FirstUse = False
    passphrase_file: PassphraseFile = None
    as_json: JsonOption = False

    def plain(self) -> Reads:
        """The same as a command over one stream has them."""
        return Reads(**{one.name: getattr(self, one.name) for one in fields(Reads) if one.name != "stream"})


@dataclass(frozen=True, slots=True)
class RealmSays:
    """Options of a command that says something for a realm. `realm.say` carries it out."""

    realm: RealmOption = None
    no_cache: NoCache = False
    cap: Cap = None
    hub: HubUrl = None
    client: ClientDir = None
    pin: HubPin = None
    first_use: FirstUse = False
    passphrase_file: PassphraseFile = None
    as_json: JsonOption = False

    def plain(self) -> Says:
        """The same as a command over one stream has them."""
        left_out = ("stream", "blind")
        return Says(**{one.name: getattr(self, one.name) for one in fields(Says) if one.name not in left_out})
