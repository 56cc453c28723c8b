"""What each part of ID's state holds, and how two runs of events join. id-spec §6 to §11.

Every join is a maximum: it does not matter in which order or how often states are joined. So the states of several
streams, and of several hubs, join in the same way as two pieces of one log.

    Founded   a principal: when it was first said to be, and the newest `info`
    Latest    a record that the greatest (ts, place) wins; `ts` is 0 where the place alone decides
    Named     what a group is called
    Marks     names that events switch on and off: the groups of an account, the roles of an account or a group
    Revoked   the earliest revocation
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, Self, TypeAlias, TypeVar

from veen.core.cbor import Array, Bstr, Bytes, ListOf, Map, Nested, Text, Uint, Wire
from veen.core.hashing import U32_MAX
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.entry import At
from veen.overlays.event import Event
from veen.overlays.fields import ascending, body, optional_map
from veen.overlays.identity.events import CtxProfile, Device, ExternalLink, HandleMap, OrgProfile

E = TypeVar("E", bound=Event)
NOWHERE = At(0, 0)


@dataclass(frozen=True, slots=True)
class Founded(Wire):
    """A principal. The `info_` place is 0, 0 where no record had any."""

    created_at: int
    epoch: int
    stream_seq: int
    info_epoch: int = 0
    info_seq: int = 0
    info: bytes | None = None

    LAYOUT: ClassVar = body(
        "principal",
        Uint("created_at"),
        Uint("epoch"),
        Uint("stream_seq"),
        Uint("info_epoch"),
        Uint("info_seq"),
        optional_map("info"),
    )

    @classmethod
    def of(cls, created_at: int, at: At, info: bytes | None) -> Self:
        return cls(created_at, *at, *(NOWHERE if info is None else at), info)

    def join(self, other: Self) -> Self:
        first = min(self, other, key=lambda one: (one.epoch, one.stream_seq, one.created_at))
        newest = max(self, other, key=lambda one: (one.info_epoch, one.info_seq, one.info or b""))
        founded = (first.created_at, first.epoch, first.stream_seq)
        return type(self)(*founded, newest.info_epoch, newest.info_seq, newest.info)


@dataclass(frozen=True, slots=True)
class Latest(Wire, Generic[E]):
    """The winning record so far."""

    ts: int
    epoch: int
    stream_seq: int
    record: E

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)

    def join(self, other: Self) -> Self:
        # Equal (ts, place) come of two streams only; their bytes decide, so that everybody takes the same one.
        return max(self, other, key=lambda one: (one.ts, one.at, one.record.encode()))


def _latest(name: str, event: type[Event]) -> Map:
    return body(name, Uint("ts"), Uint("epoch"), Uint("stream_seq"), Nested("record", event))


class LatestDevice(Latest[Device]):
    __slots__ = ()
    LAYOUT: ClassVar = _latest("device", Device)


class LatestCtx(Latest[CtxProfile]):
    __slots__ = ()
    LAYOUT: ClassVar = _latest("context profile", CtxProfile)


class LatestOrg(Latest[OrgProfile]):
    __slots__ = ()
    LAYOUT: ClassVar = _latest("organization profile", OrgProfile)


class LatestHandle(Latest[HandleMap]):
    __slots__ = ()
    LAYOUT: ClassVar = _latest("handle", HandleMap)


class LatestLink(Latest[ExternalLink]):
    __slots__ = ()
    LAYOUT: ClassVar = _latest("external link", ExternalLink)


@dataclass(frozen=True, slots=True)
class Named(Wire):
    """What a group is called, by the greatest (ts, place)."""

    ts: int
    epoch: int
    stream_seq: int
    name: str
    realm_id: bytes | None = None

    LAYOUT: ClassVar = body(
        "group",
        Uint("ts"),
        Uint("epoch"),
        Uint("stream_seq"),
        Text("name", MAX_BODY_BYTES),
        Bstr("realm_id", optional=True),
    )

    def join(self, other: Self) -> Self:
        return max(
            self, other, key=lambda one: (one.ts, one.epoch, one.stream_seq, one.name.encode(), one.realm_id or b"")
        )


@dataclass(frozen=True, slots=True)
class Mark(Wire):
    """One name, and where it was last switched on and off; entry 0 where it never was."""

    name: bytes
    on_epoch: int
    on_seq: int
    off_epoch: int
    off_seq: int

    LAYOUT: ClassVar = Array(
        "mark",
        Bytes("name", MAX_BODY_BYTES),
        Uint("on_epoch"),
        Uint("on_seq"),
        Uint("off_epoch"),
        Uint("off_seq"),
    )

    @classmethod
    def of(cls, name: bytes, at: At, *, on: bool, off: bool) -> Self:
        return cls(name, *(at if on else NOWHERE), *(at if off else NOWHERE))

    @property
    def on(self) -> At:
        return At(self.on_epoch, self.on_seq)

    @property
    def off(self) -> At:
        return At(self.off_epoch, self.off_seq)

    @property
    def holds(self) -> bool:
        """An add counts until a later remove: one that comes in the same entry is not later."""
        return self.on != NOWHERE and self.on >= self.off

    def join(self, other: Self) -> Self:
        return type(self)(self.name, *max(self.on, other.on), *max(self.off, other.off))


@dataclass(frozen=True, slots=True)
class Marks(Wire):
    """Marks, ascending by name."""

    marks: tuple[Mark, ...]

    LAYOUT: ClassVar = body("marks", ListOf("marks", Nested("mark", Mark), most=U32_MAX, least=1))

    def flaw(self) -> str | None:
        return None if ascending(mark.name for mark in self.marks) else "its names are not in order"

    def names(self) -> Iterator[bytes]:
        """The names that are switched on."""
        return (mark.name for mark in self.marks if mark.holds)

    def join(self, other: Self) -> Self:
        joined = {mark.name: mark for mark in self.marks}
        for mark in other.marks:
            joined[mark.name] = mark.join(joined[mark.name]) if mark.name in joined else mark
        return type(self)(tuple(joined[name] for name in sorted(joined)))


@dataclass(frozen=True, slots=True)
class Revoked(Wire):
    """That something is revoked: since when by the revoker's word, in which entry, why, and by which organization."""

    ts: int
    epoch: int
    stream_seq: int
    reason: str | None = None
    org_id: bytes | None = None

    LAYOUT: ClassVar = body(
        "revocation",
        Uint("ts"),
        Uint("epoch"),
        Uint("stream_seq"),
        Text("reason", MAX_BODY_BYTES, optional=True),
        Bstr("org_id", optional=True),
    )

    def join(self, other: Self) -> Self:
        return min(
            self,
            other,
            key=lambda one: (one.ts, one.epoch, one.stream_seq, (one.reason or "").encode(), one.org_id or b""),
        )


Held: TypeAlias = Founded | LatestDevice | LatestCtx | LatestOrg | LatestHandle | LatestLink | Named | Marks | Revoked
State: TypeAlias = Held | None


def join(a: State, b: State) -> State:
    """What two states of one part come to."""
    if a is None or b is None:
        return b if a is None else a
    assert type(a) is type(b), "a part is of one kind"
    joined: Held = a.join(b)  # type: ignore[arg-type]
    return joined
