"""The error tree, by what the caller can do next.

    VeilError
      Malformed     the bytes cannot be decoded                        never retry
      Unverified    a root, signature or seal fails                    never retry with the same bytes
      Refused       a limit or a local rule rejects the request        change the request
      Unavailable   a peer, a library or the disk is unavailable       retry later

Every decoder raises only `Malformed`. Bugs in this program are `assert` and `ValueError`.
"""


class VeilError(Exception):
    """Base class. `what` names the thing that failed, `reason` says why."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


class Malformed(VeilError):
    """The bytes cannot be decoded as the expected object."""


class Unverified(VeilError):
    """The object was decoded, but its root, signature or seal failed verification."""


class Refused(VeilError):
    """The object or request is valid, but a limit or a local rule rejects it."""


class Unavailable(VeilError):
    """A peer, a proxy, a library or a disk is unavailable. A retry may succeed."""
