"""The hubs and the last date of capabilities that a command issues: --hub, --not-after and --bare."""

import os
import re
import time
from collections.abc import Sequence
from typing import Annotated, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, option
from veen.cli.kit import context_file, pinning, values
from veen.client import ClientDir, capabilities

_RELATIVE = re.compile(r"\d+[smhd]", re.ASCII)


def hub_id(text: str) -> bytes:
    """Parse a hub id in hex, or read it from a data directory or identity file."""
    found = pinning.pinned_key(text)
    assert found is not None
    return found


def last_moment(text: str) -> int:
    """Parse a time, or a duration from now."""
    if _RELATIVE.fullmatch(text):
        return int(time.time()) + durations.whole_seconds(text, 1)
    return values.moment(text)


HubIds: TypeAlias = Annotated[
    list[bytes] | None,
    option(
        "--hub ID|PATH",
        "a hub that may accept it: its id, data directory or identity file",
        default="the context's hub, if the issuer has used it",
        parser=hub_id,
    ),
]
NotAfter: TypeAlias = Annotated[
    int | None,
    option(
        "--not-after TIME|7d",
        "when it ends even if it was never used: a date, or a time from now",
        default="30 days from now, or --ttl if that is longer",
        parser=last_moment,
    ),
]
Bare: TypeAlias = Annotated[
    bool, option("--bare", "name no hub and no end; only hubs with --accept-bare-tokens and older hubs accept it")
]


def hubs_of(given: Sequence[bytes] | None, bare: bool, issuer: ClientDir) -> tuple[bytes, ...]:
    """The hubs to issue for: those given, or the hub of the context. None with --bare."""
    if bare:
        if given:
            raise Misuse("--bare and --hub contradict each other", "give one of them")
        return ()
    if given:
        return tuple(given)
    url = os.environ.get("VEEN_HUB") or context_file.selected().hub
    known = issuer.state.hub_of(values.url(url)) if url else None
    if known is None:
        raise Misuse(
            "missing --hub: a capability names the hubs that may accept it",
            "give --hub with a hub id or a data directory; veen hub key --hub URL shows the id of a hub",
        )
    return (known,)


def end_of(given: int | None, ttl: int) -> int:
    """The last second of a capability that is issued now."""
    now = int(time.time())
    if given is not None and given <= now:
        raise Misuse("--not-after is in the past", "give a later date, or a time from now like 30d")
    return capabilities.default_end(now, ttl) if given is None else given
