"""Whose requests are heard at all, before it is asked who they are: not those of a page of another site.

A token does not come along by itself, but a certificate does, and a browser has one in store. So no answer says that
another origin may read it, no query is taken in a form that a page may post unasked, and what comes from a page
elsewhere, or by a name that is not this service's, is refused.
"""

from collections.abc import Mapping, Sequence

from veen.core.loopback import authority_of, is_asked_here, is_loopback
from veen.query.faults import Code, QueryFault

_ELSEWHERE = frozenset({b"cross-site", b"same-site"})


class Gate:
    """`names` are those that it is asked by beside its own address, as a proxy passes them on."""

    def __init__(self, host: str, names: Sequence[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names)
        # One that listens to the network is known by whatever name its operator gave it, unless that was said.
        self._closed = is_loopback(host) or bool(names)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless the request is for this service, and from no page elsewhere."""
        host, origin = _text(headers, b"host") or "", _text(headers, b"origin")
        if self._closed:
            heard = is_asked_here(host, origin, self._names)
        else:
            heard = origin is None or "" != authority_of(origin) == host.lower()
        if not heard or (origin is None and headers.get(b"sec-fetch-site") in _ELSEWHERE):
            raise QueryFault(Code.FORBIDDEN_HOST, "this service is asked by its own address, and by no page of another")


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    found = headers.get(name)
    return None if found is None else found.decode("latin-1")
