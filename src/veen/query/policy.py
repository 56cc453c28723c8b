"""Principals of the query service: credentials, permitted streams and visible results. 001, query-api-spec §7.1.

A principal represents one VEEN client identity. It authenticates with a bearer token, of which only the hash is stored,
or with a certificate that TLS verified. It may query the streams of its scope, and sees its own results or all.
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any

from veen.client import local_files
from veen.client.local_files import DISK
from veen.core import Malformed, Unavailable, canonical_json

TOKEN_PREFIX = "veenq_"
OWN, ALL = "own", "all"
ANYTHING = "*"
_VERSION = 1
_TOKEN_BYTES = 32
_MAX_BYTES = 1 << 24
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Token:
    """The hash of a token; the token itself is not stored. With 256 random bits it needs no slow hash."""

    name: str
    sha256: str
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class QueryPrincipal:
    """A principal. `scope` lists streams; a name that ends in * matches every stream with that prefix."""

    name: str
    client_id: str  # the VEEN client identity behind it
    scope: tuple[str, ...] = ()
    sees: str = OWN
    subject: str | None = None  # subject of its recorded queries; default: the identity
    tokens: tuple[Token, ...] = ()
    certificates: tuple[str, ...] = ()  # SHA-256 of the DER form

    @property
    def subject_id(self) -> str:
        return self.subject or f"client:{self.client_id}"

    def may_ask(self, stream: str) -> bool:
        return any(_covers(rule, stream) for rule in self.scope)

    def flaw(self) -> str | None:
        if not self.name or not _HASH.fullmatch(self.client_id):
            return f"principal {self.name!r} needs a name and a client_id of 64 lowercase hex digits"
        if not all(_HASH.fullmatch(one) for one in (*(token.sha256 for token in self.tokens), *self.certificates)):
            return f"principal {self.name!r} has a token or certificate that is not a SHA-256 in hex"
        return None if self.sees in (OWN, ALL) else f"principal {self.name!r} sees {self.sees!r}; use own or all"


def _covers(rule: str, stream: str) -> bool:
    return stream.startswith(rule[:-1]) if rule.endswith(ANYTHING) else stream == rule


def hashed(token: str) -> str:
    return sha256(token.encode()).hexdigest()


class PolicyBook:
    """The principals, in a file that only its owner can read. A change applies from the next request."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._seen: tuple[int, ...] | None = None
        self._principals: tuple[QueryPrincipal, ...] = ()

    def principals(self) -> tuple[QueryPrincipal, ...]:
        """All principals. Raises `Unavailable` or `Malformed` if the file is unreadable or unsafe; no one is let in."""
        if not self.path.exists():
            return ()
        with local_files.named(self.path):
            stat = self.path.stat()
        seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if seen != self._seen:
            local_files.check_private(self.path)
            self._principals, self._seen = _decode(local_files.read_file(self.path, _MAX_BYTES), self.path), seen
        return self._principals

    def by_token(self, token: str) -> QueryPrincipal | None:
        """Compare every hash in constant time, so that the response time reveals nothing."""
        given, now, found = hashed(token), self._clock(), None
        for principal in self.principals():
            for one in principal.tokens:
                if compare_digest(one.sha256, given) and (one.expires_at is None or now < one.expires_at):
                    found = principal
        return found

    def by_certificate(self, der: bytes) -> QueryPrincipal | None:
        given = sha256(der).hexdigest()
        return next((one for one in self.principals() if given in one.certificates), None)

    def get(self, name: str) -> QueryPrincipal | None:
        return next((one for one in self.principals() if one.name == name), None)

    def put(self, principal: QueryPrincipal) -> None:
        """Add a principal, or replace the one with the same name."""
        if (flaw := principal.flaw()) is not None:
            raise ValueError(flaw)
        with self._locked():
            self._put(principal)

    def issue(self, name: str, token_name: str, ttl_s: int | None = None) -> str:
        """Create a token for a principal. It is returned once and stored as a hash."""
        token, now = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES), int(self._clock())
        stored = Token(token_name, hashed(token), None if ttl_s is None else now + ttl_s)
        with self._locked():
            principal = self._required(name)
            if any(one.name == token_name for one in principal.tokens):
                raise Unavailable(f"{name} already has a token {token_name!r}")
            self._put(replace(principal, tokens=(*principal.tokens, stored)))
        return token

    def revoke(self, name: str, token_name: str) -> None:
        with self._locked():
            principal = self._required(name)
            remaining = tuple(one for one in principal.tokens if one.name != token_name)
            if remaining == principal.tokens:
                raise Unavailable(f"{name} has no token {token_name!r}")
            self._put(replace(principal, tokens=remaining))

    def _locked(self) -> AbstractContextManager[None]:
        """Held while the file is read, changed and written: two changes at once could undo a revocation."""
        return local_files.locked(self.path.with_name(f"{self.path.name}.lock"), str(self.path), wait=True)

    def _put(self, principal: QueryPrincipal) -> None:
        if (flaw := principal.flaw()) is not None:
            raise ValueError(flaw)
        others = [one for one in self.principals() if one.name != principal.name]
        self._write([*others, principal])

    def _required(self, name: str) -> QueryPrincipal:
        found = self.get(name)
        if found is None:
            raise Unavailable(f"there is no principal {name!r} in {self.path}")
        return found

    def _write(self, principals: Iterable[QueryPrincipal]) -> None:
        listed = [asdict(one) for one in sorted(principals, key=lambda one: one.name)]
        data = json.dumps({"version": _VERSION, "principals": listed}, indent=2) + "\n"
        DISK.write_file(self.path, data.encode())
        DISK.sync_folder(self.path.parent)


def _decode(data: bytes, path: Path) -> tuple[QueryPrincipal, ...]:
    found: Any = canonical_json.parse(data, str(path))
    try:
        if found["version"] != _VERSION:
            raise Malformed(str(path), f"version is {found['version']}, expected {_VERSION}")
        made = tuple(_principal(one) for one in found["principals"])
        flaws = [flaw for one in made if (flaw := one.flaw()) is not None]
    except (AttributeError, KeyError, TypeError):
        raise Malformed(str(path), "it is not a list of principals") from None
    if flaws:
        raise Malformed(str(path), flaws[0])
    return made


def _principal(found: Any) -> QueryPrincipal:
    listed: Any = {name: tuple(map(str, found.get(name) or ())) for name in ("scope", "certificates")}
    tokens = tuple(Token(one["name"], str(one["sha256"]), one.get("expires_at")) for one in found.get("tokens") or ())
    own = {name: found[name] for name in ("name", "client_id", "sees", "subject") if name in found}
    return QueryPrincipal(**own, **listed, tokens=tokens)
