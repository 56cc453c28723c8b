"""How many files a hub may have open: those of the log must not be wanting because strangers hold connections."""

import resource
from contextlib import suppress
from dataclasses import replace

from veen.hub.config import HubConfig

# For the log, the index, those who read it, attachments on their way and the workers.
RESERVED = 128


def allowed() -> int | None:
    """How many files the system lets this process have open once it has asked for all; None is no bound."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def raise_limit() -> int | None:
    """Ask for as many as are allowed, which many systems do not give unasked; returns how many there are."""
    with suppress(OSError, ValueError):  # one that does not give what it promised
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def fitting(config: HubConfig, files: int | None) -> HubConfig:
    """The configuration with no more connections than that many open files have room for."""
    if files is None or files - RESERVED >= config.http.max_connections:
        return config
    return replace(config, http=replace(config.http, max_connections=max(1, files - RESERVED)))
