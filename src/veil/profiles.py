"""Profiles and buckets: into how many shards, of which size, an object is cut. Spec §5 and §6."""

from collections.abc import Callable
from dataclasses import dataclass

from veil.veil_errors import Refused
from veil.veil_limits import KIB


@dataclass(frozen=True, slots=True)
class Shape:
    """Any `k` of `n` shards, each of exactly `bucket_size` bytes, give the object back."""

    profile_id: int
    k: int
    n: int
    bucket_size: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A number of shards, and the buckets they may come in, ascending."""

    profile_id: int
    k: int
    n: int
    buckets: tuple[int, ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(Shape(self.profile_id, self.k, self.n, bucket) for bucket in self.buckets)


MICRO = Profile(1, 2, 3, (2 * KIB, 4 * KIB, 8 * KIB))
SMALL = Profile(2, 6, 10, (16 * KIB, 32 * KIB))
LARGE = Profile(3, 10, 16, (32 * KIB, 64 * KIB))
PROFILES = (MICRO, SMALL, LARGE)
# In the order of what they hold.
SHAPES = tuple(shape for profile in PROFILES for shape in profile.shapes)
_KNOWN = frozenset(SHAPES)

Room = Callable[[Shape], int]


def is_known(shape: Shape) -> bool:
    """Whether a profile of ours makes shards of this shape."""
    return shape in _KNOWN


def choose(size: int, room: Room, *, jitter: int = 0, draw: int = 0) -> Shape:
    """The smallest shape with room for an object; with `jitter`, one of up to so many larger buckets, by `draw`.

    `room` says how many bytes of object a shape takes. Jitter stays within the profile: it hides the size of an object
    from who counts bytes, and must not change how many shards may be lost.
    """
    fitting = [shape for shape in SHAPES if room(shape) >= size]
    if not fitting:
        raise Refused("object", f"{size} bytes fit no shape: the largest holds {room(SHAPES[-1])}")
    larger = [shape for shape in fitting if shape.profile_id == fitting[0].profile_id][: jitter + 1]
    return larger[draw % len(larger)]


def fullest(target: int, room: Room) -> int:
    """The most bytes of object, up to `target`, that fill a shape: one byte more would cost a larger one."""
    return max((room(shape) for shape in SHAPES if room(shape) <= target), default=target)
