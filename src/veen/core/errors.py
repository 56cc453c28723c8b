"""Errors with a cause outside this program, classed by what the caller does next.

    VeenError
      Malformed     the bytes do not decode as the expected object      never retry
      Unverified    they decode, but a signature, hash or proof fails   never retry
      Refused       they are valid, but a rule of the hub rejects them  see its code
      Unavailable   a disk or a peer did not answer                     retry later

Programming errors are not part of this tree: they raise `AssertionError` or `ValueError`.
"""

from enum import IntEnum


class Fault(IntEnum):
    """The structural rows of the admission table, in the order in which they are checked. Spec §8.2."""

    CBOR = 1
    SIZE = 2
    VERSION = 3


class VeenError(Exception):
    """Base class of all errors with an outside cause."""


class Malformed(VeenError):
    """The bytes do not decode as the expected object."""

    def __init__(self, what: str, reason: str, fault: Fault = Fault.CBOR) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason
        self.fault = fault


class Unverified(VeenError):
    """The object decodes, but a signature, hash or proof in it does not verify."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


class Refused(VeenError):
    """The object is valid, but a rule of the hub rejects it. Has the machine-readable fields of the error envelope."""

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
