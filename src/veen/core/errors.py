"""What can go wrong for reasons outside this program.

    VeenError
      Malformed     the bytes are not the object they claim to be     never retry
      Unverified    they parse; a signature, hash or proof fails      never retry
      Refused       they hold; a rule of this hub says no             see its code
      Unavailable   a disk or a peer did not answer                   retry later

Our own mistakes are not here: those are `assert` and `ValueError`, and they crash.
"""

from enum import IntEnum


class Fault(IntEnum):
    """Which structural row of spec §8.2 a malformed object falls under, in the order they are judged."""

    CBOR = 1
    SIZE = 2
    VERSION = 3


class VeenError(Exception):
    """Everything below, for callers that only need to know that it did not work."""


class Malformed(VeenError):
    """The bytes are not the object they claim to be."""

    def __init__(self, what: str, reason: str, fault: Fault = Fault.CBOR) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason
        self.fault = fault


class Unverified(VeenError):
    """The object parses, and a signature, hash or proof in it does not hold."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


class Refused(VeenError):
    """The object holds, and a rule of this hub says no. Carries the error envelope's machine-readable part."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        stage: str | None = None,
        detail_enum: str | None = None,
        detail: dict[str, int | str] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}" if detail_enum is None else f"{code}/{detail_enum}: {message}")
        self.code = code
        self.message = message
        self.stage = stage
        self.detail_enum = detail_enum
        self.detail = detail or {}
        self.retry_after = retry_after


class Unavailable(VeenError):
    """A disk or a peer did not answer. Nothing was decided; the same request may succeed later."""
