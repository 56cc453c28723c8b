"""`veen label-class`: classify labels by the kind of data they hold."""

from typing import Annotated, Any, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.kit.result import Result
from veen.cli.kit.state_session import Answer, SendSession
from veen.cli.kit.values import label as label_hex
from veen.cli.realm.realm_state import (
    CLASSES,
    PreparedEvent,
    RealmSession,
    RealmState,
    add_realm_faults,
    realm_read_command,
    realm_send_command,
    send_events,
)
from veen.core import naming
from veen.overlays.stream_catalog import LABEL_CLASSES, LabelClass, class_of, policy

app = group(
    "label-class",
    """Classify labels by the kind of data they hold.

    A class is advice on padding, rate and retention. No hub acts on it by itself.
    """,
)

StreamName: TypeAlias = Annotated[
    str | None, argument("STREAM", "the stream of the label, in the epoch of now or --when")
]
LabelOption: TypeAlias = Annotated[bytes | None, option("--label HEX", "the label itself", parser=label_hex)]


@realm_send_command(
    app,
    "set",
    "veen label-class set doors --class user --sensitivity high --retention 31536000",
    "veen label-class set --label 5b1e… --class log",
)
async def set_(
    session: SendSession,
    class_: Annotated[str, option("--class WORD", "user, wallet, log, metric, admin, control, bulk or your own")],
    stream: StreamName = None,
    label: LabelOption = None,
    sensitivity: Annotated[str | None, option("--sensitivity WORD", "low, medium, high or your own")] = None,
    retention: Annotated[
        int | None,
        durations.whole_option(
            "--retention", least=0, help="how long to retain it; veen retention set-classes lets a hub follow it"
        ),
    ] = None,
) -> Result:
    """Classify a label.

    Replaces its previous class.
    """
    if not class_:
        raise Misuse("--class is empty", "give --class user, for example")
    _check_one(stream, label)
    state = await CLASSES.open(session)
    found = _label(state, stream, label)
    shown = {"label": found, "class": class_, "sensitivity": sensitivity, "retention_hint": retention}
    event = LabelClass(found, class_, sensitivity, retention)
    prepared = PreparedEvent(event, found, {"realm_id": state.realm_id, **shown}, tuple(shown))
    return await send_events(session, state, [prepared])


@realm_read_command(app, "show", "veen label-class show doors", "veen label-class show --label 5b1e… --json")
async def show(session: RealmSession, stream: StreamName = None, label: LabelOption = None) -> Answer:
    """Show the class of a label, and the advice that follows from it."""
    _check_one(stream, label)
    state = await CLASSES.open(session)
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
    data = {"realm_id": state.realm_id, **values}
    return Answer(data, facts=tuple(values), parts=(found,) if class_ else ())


@realm_read_command(app, "list", "veen label-class list", "veen label-class list --at 12 --json")
async def list_(session: RealmSession) -> Answer:
    """List the labels that have a class."""
    state = await CLASSES.open(session)
    states = dict(sorted(state.reading.states.items()))
    data = [LABEL_CLASSES.plain(part, records) for part, records in states.items()]
    return Answer(
        {"realm_id": state.realm_id, "labels": data},
        rows="labels",
        columns=("label", "class", "sensitivity", ("retention", "retention_hint"), ("entry", "stream_seq")),
        parts=tuple(states),
    )


def _check_one(stream: str | None, label: bytes | None) -> None:
    if (stream is None) == (label is None):
        raise Misuse("give either STREAM or --label", "give STREAM or --label HEX, and not both")


def _label(state: RealmState[Any, Any], stream: str | None, label: bytes | None) -> bytes:
    return label if stream is None and label is not None else state.label(naming.stream_id(stream or ""))


add_realm_faults(app, "veen label-class", CLASSES)
