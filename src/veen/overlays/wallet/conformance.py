"""The conformance levels of WAL: which events each folds. wallet-spec §14. This implementation is at `BRIDGE`."""

from enum import IntEnum

from veen.overlays.event import Event
from veen.overlays.wallet.events import (
    WALLET_EVENTS,
    Adjust,
    Close,
    Deposit,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    Withdraw,
)


class Level(IntEnum):
    """Each level has all that the one before it has."""

    CORE = 1  # wallet_id, open, deposit, withdraw, transfer; balances of one hub
    LIMITS = 2  # and daily limits
    CONTROL = 3  # and freezes and corrections
    BRIDGE = 4  # and WALBR0: a mirrored event counts once


SINCE: dict[type[Event], Level] = {
    Open: Level.CORE,
    Close: Level.CORE,  # no level names it, and without it no wallet ends
    Deposit: Level.CORE,
    Withdraw: Level.CORE,
    Transfer: Level.CORE,
    Limit: Level.LIMITS,
    Freeze: Level.CONTROL,
    Unfreeze: Level.CONTROL,
    Adjust: Level.CONTROL,
}


def events_of(level: Level) -> tuple[type[Event], ...]:
    """The events that an implementation at a level folds."""
    return tuple(event for event in WALLET_EVENTS if SINCE[event] <= level)
