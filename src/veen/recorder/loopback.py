"""Which names of a host are this machine's own."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """An address, or `localhost`; no other name, whatever it begins with."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_at_loopback(url: str) -> bool:
    """Whether the host of a URL is; one that is no URL has none."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
