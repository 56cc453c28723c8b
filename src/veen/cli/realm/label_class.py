"""`veen label-class`: what kind of data a label holds."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.kit import faults_command
from veen.cli.kit.state_options import options_command
from veen.cli.kit.values import label as label_hex
from veen.cli.realm.realm_state import RealmReads, RealmSays

if TYPE_CHECKING:
    from veen.cli.kit.read_state import StateAnswer
    from veen.cli.realm.admin_event import Saying
    from veen.cli.realm.realm_state import AdminStream, Look
    from veen.overlays.admin.admin_records import AdminRecord
    from veen.overlays.admin.label_class import LabelClass

    Records: TypeAlias = tuple[AdminRecord[LabelClass], ...]
    Looked: TypeAlias = Look[Records, Records]

app = group(
    "label-class",
    """Say what kind of data a label holds, as advice on padding, rate and retention.

    A hub that does not know a class, or does not follow it, is no less correct.
    """,
)

StreamName: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="STREAM", help="the stream whose label it is, in the epoch of the time asked about"),
]
LabelOption: TypeAlias = Annotated[
    bytes | None, typer.Option("--label", metavar="HEX", help="the label itself", parser=label_hex)
]


@options_command(
    RealmSays,
    app,
    "set",
    "veen label-class set doors --class user --sensitivity high --retention 31536000",
    "veen label-class set --label 5b1e… --class log",
)
def set_(
    asked: RealmSays,
    class_: Annotated[
        str,
        typer.Option("--class", metavar="WORD", help="user, wallet, log, metric, admin, control, bulk or your own"),
    ],
    stream: StreamName = None,
    label: LabelOption = None,
    sensitivity: Annotated[
        str | None, typer.Option("--sensitivity", metavar="WORD", help="low, medium, high or your own")
    ] = None,
    retention: Annotated[
        int | None,
        durations.whole_option(
            "--retention", least=0, help="for how long it should be kept: a declaration, since no hub deletes anything"
        ),
    ] = None,
) -> None:
    """Classify a label. What was said before of it no longer counts."""
    from veen.cli.realm import admin_event, realm_state
    from veen.overlays.admin import LabelClass

    if not class_:
        raise Misuse("a class has a name", "give --class user, for example")

    def make(look: "Looked") -> "list[Saying]":
        found = _label(look, stream, label)
        event = LabelClass(found, class_, sensitivity, retention)
        shown = {"label": found, "class": class_, "sensitivity": sensitivity, "retention_hint": retention}
        return [admin_event.Saying(event, found, shown, {"realm_id": look.realm_id, **shown})]

    admin_event.say(asked, realm_state.CLASSES, make)


@options_command(RealmReads, app, "show", "veen label-class show doors", "veen label-class show --label 5b1e… --json")
def show(asked: RealmReads, stream: StreamName = None, label: LabelOption = None) -> None:
    """Show the class of a label, and the hints that follow from it."""
    from veen.cli.kit import read_state
    from veen.cli.kit.sanitize import printable
    from veen.cli.realm import realm_state
    from veen.overlays.admin.label_class import class_of, policy

    def look(here: "Looked") -> "StateAnswer":
        found = _label(here, stream, label)
        said = class_of(here.reading.states, found)
        hints = policy(said)
        told = {
            "label": found,
            "class": said.class_ if said else None,
            "sensitivity": said.sensitivity if said else None,
            "retention_hint": said.retention_hint if said else None,
            "pad_block": hints.pad_block,
            "rate": str(hints.rate),
            "retention_sec": hints.retention_sec,
        }
        facts = {name: printable(value) if isinstance(value, str) else value for name, value in told.items()}
        data = {"realm_id": here.realm_id, **told}
        return read_state.StateAnswer(facts=facts, data=data, parts=(found,) if said else ())

    realm_state.answer(asked, realm_state.CLASSES, look)


@options_command(RealmReads, app, "list", "veen label-class list", "veen label-class list --at 12 --json")
def list_(asked: RealmReads) -> None:
    """List the labels that have a class."""
    from veen.cli.kit import read_state, render_state
    from veen.cli.kit.sanitize import printable, short
    from veen.cli.realm import realm_state
    from veen.overlays.admin.label_class import LABEL_CLASSES

    def look(here: "Looked") -> "StateAnswer":
        rows, data = [], []
        states = dict(here.reading.states)
        for part in sorted(states):
            said = states[part][0].event
            sensitivity = None if said.sensitivity is None else printable(said.sensitivity)
            entry = states[part][0].stream_seq
            rows.append((short(part), printable(said.class_), sensitivity, said.retention_hint, entry))
            data.append(render_state.plain_json(LABEL_CLASSES.plain(part, states[part])))
        columns = ("label", "class", "sensitivity", "retention", "entry")
        told = {"realm_id": here.realm_id, "labels": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=told, parts=tuple(sorted(states)))

    realm_state.answer(asked, realm_state.CLASSES, look)


def _label(look: "Looked", stream: str | None, label: bytes | None) -> bytes:
    from veen.core import naming

    if (stream is None) == (label is None):
        raise Misuse("one label is meant", "give STREAM or --label HEX, and not both")
    if label is not None:
        return label
    assert stream is not None
    return look.label(naming.stream_id(stream))


def _stream() -> "AdminStream[Records, Records]":
    from veen.cli.realm import realm_state

    return realm_state.CLASSES


faults_command.add_for_realm(app, "veen label-class", _stream)
