"""Profiles and buckets: the numbers and sizes of shards. Spec §5 and §6."""

from collections.abc import Callable
from dataclasses import dataclass

from veil.veil_errors import Refused
from veil.veil_limits import KIB


@dataclass(frozen=True, slots=True)
class Shape:
    """Any `k` of `n` shards restore the object. Each shard has exactly `bucket_size` bytes."""

    profile_id: int
    k: int
    n: int
    bucket_size: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A choice of k and n, and its bucket sizes in ascending order."""

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
# Ascending by capacity.
SHAPES = tuple(shape for profile in PROFILES for shape in profile.shapes)
_KNOWN = frozenset(SHAPES)

Room = Callable[[Shape], int]


def is_known(shape: Shape) -> bool:
    return shape in _KNOWN


def choose(size: int, room: Room, *, jitter: int = 0, draw: int = 0) -> Shape:
    """The smallest shape that holds an object of `size` bytes, or, with `jitter`, one of the next larger buckets.

    `room` gives the object bytes that a shape holds. `draw` selects among at most `jitter + 1` buckets. Jitter stays
    within the profile: it hides the object size from an observer of byte counts and must not change k and n.
    """
    fitting = [shape for shape in SHAPES if room(shape) >= size]
    if not fitting:
        raise Refused("object", f"{size} bytes are more than the largest shape holds ({room(SHAPES[-1])})")
    larger = [shape for shape in fitting if shape.profile_id == fitting[0].profile_id][: jitter + 1]
    return larger[draw % len(larger)]


def fullest(target: int, room: Room) -> int:
    """The largest object size up to `target` that exactly fills a shape; one more byte would need a larger shape."""
    return max((room(shape) for shape in SHAPES if room(shape) <= target), default=target)
