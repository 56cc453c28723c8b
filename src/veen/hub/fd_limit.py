"""Limits on open files, so that connections of strangers never use up the descriptors that the log needs."""

import resource
from contextlib import suppress
from dataclasses import replace

from veen.hub.config import HubConfig

# For log, index, readers, uploads and workers.
RESERVED = 128


def hard_limit() -> int | None:
    """The hard limit on open files; None if there is none."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def raise_limit() -> int | None:
    """Raise the soft limit to the hard limit. Returns the new limit; None if there is none."""
    with suppress(OSError, ValueError):  # some systems refuse although the hard limit allows it
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def fit_connections(config: HubConfig, files: int | None) -> HubConfig:
    """The configuration with `max_connections` reduced to what `files` allows."""
    if files is None or files - RESERVED >= config.http.max_connections:
        return config
    return replace(config, http=replace(config.http, max_connections=max(1, files - RESERVED)))
