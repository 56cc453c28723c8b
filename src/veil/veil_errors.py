"""What can go wrong for reasons outside this program.

    VeilError
      Malformed     the bytes are not the object they claim to be      never retry
      Unverified    they parse; a root, signature or seal fails        never retry with the same bytes
      Refused       they hold; a limit or a rule of ours says no       change what is asked
      Unavailable   a peer, a library or the disk is not there         the same may work later

Every decoder raises `Malformed` and nothing else. Our own mistakes are not here: those are `assert` and `ValueError`.
"""


class VeilError(Exception):
    """Everything below, for callers that only need to know that it did not work."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


class Malformed(VeilError):
    """The bytes are not the object they claim to be."""


class Unverified(VeilError):
    """The object parses, and a root, a signature or a seal of it does not hold."""


class Refused(VeilError):
    """The object holds, and a limit or a local rule says no."""


class Unavailable(VeilError):
    """A peer, a proxy, a library or a disk is not there, or no longer. The same may work later."""
