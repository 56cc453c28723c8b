"""`veen label-class`: classify labels by the kind of data they hold."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.kit import faults_command, read_state, render_state
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import options_command
from veen.cli.kit.values import label as label_hex
from veen.cli.realm import admin_event, realm_state
from veen.cli.realm.admin_event import PreparedEvent
from veen.cli.realm.realm_state import RealmReadOptions, RealmSendOptions, RealmState
from veen.core import naming
from veen.overlays.admin_records import AdminRecord
from veen.overlays.stream_catalog import LABEL_CLASSES, LabelClass, class_of, policy

Records: TypeAlias = tuple[AdminRecord[LabelClass], ...]
ClassState: TypeAlias = RealmState[Records, Records]


app = group(
    "label-class",
    """Classify labels by the kind of data they hold.

    A class is advice on padding, rate and retention. A hub is free to ignore it.
    """,
)

StreamName: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="STREAM", help="the stream of the label, in the epoch of now or --when"),
]
LabelOption: TypeAlias = Annotated[
    bytes | None, typer.Option("--label", metavar="HEX", help="the label itself", parser=label_hex)
]


@options_command(
    RealmSendOptions,
    app,
    "set",
    "veen label-class set doors --class user --sensitivity high --retention 31536000",
    "veen label-class set --label 5b1e… --class log",
)
def set_(
    options: RealmSendOptions,
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
            "--retention", least=0, help="how long to retain it: only a declaration, because hubs delete nothing"
        ),
    ] = None,
) -> None:
    """Classify a label.

    Replaces its previous class.
    """

    if not class_:
        raise Misuse("--class is empty", "give --class user, for example")

    def make(look: ClassState) -> list[PreparedEvent]:
        found = _label(look, stream, label)
        event = LabelClass(found, class_, sensitivity, retention)
        shown = {"label": found, "class": class_, "sensitivity": sensitivity, "retention_hint": retention}
        return [admin_event.PreparedEvent(event, found, shown, {"realm_id": look.realm_id, **shown})]

    admin_event.send_events(options, realm_state.CLASSES, make)


@options_command(
    RealmReadOptions, app, "show", "veen label-class show doors", "veen label-class show --label 5b1e… --json"
)
def show(options: RealmReadOptions, stream: StreamName = None, label: LabelOption = None) -> None:
    """Show the class of a label, and the advice that follows from it."""

    def look(state: ClassState) -> StateAnswer:
        found = _label(state, stream, label)
        class_ = class_of(state.reading.states, found)
        hints = policy(class_)
        values = {
            "label": found,
            "class": class_.class_ if class_ else None,
            "sensitivity": class_.sensitivity if class_ else None,
            "retention_hint": class_.retention_hint if class_ else None,
            "pad_block": hints.pad_block,
            "rate": str(hints.rate),
            "retention_sec": hints.retention_sec,
        }
        facts = {name: printable(value) if isinstance(value, str) else value for name, value in values.items()}
        data = {"realm_id": state.realm_id, **values}
        return read_state.StateAnswer(facts=facts, data=data, parts=(found,) if class_ else ())

    realm_state.show_realm_state(options, realm_state.CLASSES, look)


@options_command(RealmReadOptions, app, "list", "veen label-class list", "veen label-class list --at 12 --json")
def list_(options: RealmReadOptions) -> None:
    """List the labels that have a class."""

    def look(state: ClassState) -> StateAnswer:
        rows, data = [], []
        states = dict(state.reading.states)
        for part in sorted(states):
            event = states[part][0].event
            sensitivity = None if event.sensitivity is None else printable(event.sensitivity)
            entry = states[part][0].stream_seq
            rows.append((short(part), printable(event.class_), sensitivity, event.retention_hint, entry))
            data.append(render_state.plain_json(LABEL_CLASSES.plain(part, states[part])))
        columns = ("label", "class", "sensitivity", "retention", "entry")
        document = {"realm_id": state.realm_id, "labels": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=document, parts=tuple(sorted(states)))

    realm_state.show_realm_state(options, realm_state.CLASSES, look)


def _label(look: ClassState, stream: str | None, label: bytes | None) -> bytes:
    if (stream is None) == (label is None):
        raise Misuse("give either STREAM or --label", "give STREAM or --label HEX, and not both")
    if label is not None:
        return label
    assert stream is not None
    return look.label(naming.stream_id(stream))


faults_command.add_for_realm(app, "veen label-class", realm_state.CLASSES)
