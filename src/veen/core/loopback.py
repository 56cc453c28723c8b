"""Which names of a host are this machine's own, and who asks a service that is only for this machine.

A page of any site can have its own name lead to 127.0.0.1, and then ask what listens there as if it were its own. What
it cannot do is say another name: a browser sends the one that the page was had by, and the page's origin beside it.
"""

import ipaddress
import re
from collections.abc import Container

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:@/?#\\]+))(?::\d{1,5})?")
_ORIGIN = re.compile(r"https?://(.+)", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """An address, or `localhost`; no other name, whatever it begins with."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(authority: str) -> str:
    """The host of HOST or HOST:PORT, in lower case, without brackets; empty, which no host is, where it is neither."""
    found = _AUTHORITY.fullmatch(authority)
    return "" if found is None else (found[1] or found[2]).lower()


def authority_of(origin: str) -> str:
    """HOST or HOST:PORT of an origin; empty where it has none, as `null` has."""
    found = _ORIGIN.fullmatch(origin)
    return "" if found is None else found[1].lower()


def is_asked_here(host: str, origin: str | None, names: Container[str] = ()) -> bool:
    """Whether a request asks this machine by a name of its own, and comes from no page of another."""
    named = [host_of(host), *([] if origin is None else [host_of(authority_of(origin))])]
    return all(is_loopback(one) or one in names for one in named)
