"""Wallets on a stream: what may be done is asked of the state before it is sent.

async with WalletBook.of(client, "ledger") as book:
    await book.deposit(wallet_id, 500)
    assert (await book.wallet(wallet_id)).balance == 500
"""

import os
from types import TracebackType
from typing import Self

from veen.client.client import Client
from veen.overlays import At, Event, EventFault
from veen.overlays.wallet import (
    WALLETS,
    Adjust,
    Close,
    Deposit,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    Wallet,
    Wallets,
    Withdraw,
    transfer_id,
    violations,
    wallet_id,
    wallet_stream,
)
from veen.overlays.wallet.transition import Function
from veen.state.event_sender import EventSender, SentEvent
from veen.state.state_view import StateView


class WalletBook:
    """An async context manager. Amounts are in the smallest unit; times are the hub's."""

    def __init__(self, view: StateView[Wallet, Function]) -> None:
        self.view = view

    @classmethod
    def of(cls, client: Client, stream: str | bytes, *, cached: bool = True) -> Self:
        """Every wallet of one stream."""
        return cls(StateView.of(client, stream, WALLETS, cached=cached))

    @classmethod
    def of_one(cls, client: Client, of_wallet: bytes, *, cached: bool = True) -> Self:
        """One wallet, on the stream that is its own."""
        return cls(StateView.of(client, wallet_stream(of_wallet), Wallets(of_wallet), cached=cached))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.view.close()

    async def wallet(self, of_wallet: bytes, at: At | None = None) -> Wallet:
        """A wallet now, or after an entry."""
        async with self.view.reading(at) as reading:
            return reading.state(of_wallet)

    async def violations(self, at: At | None = None) -> list[EventFault]:
        """Debits beyond balance or limit that someone sent all the same. They changed nothing."""
        async with self.view.reading(at) as reading:
            return list(violations(reading.faults()))

    async def open(self, realm_id: bytes, ctx_id: bytes, currency: str) -> SentEvent:
        of_wallet = wallet_id(realm_id, ctx_id, currency)
        return await self._say(Open(of_wallet, realm_id, ctx_id, currency, self._now()))

    async def close(self, of_wallet: bytes) -> SentEvent:
        return await self._say(Close(of_wallet, self._now()))

    async def deposit(self, of_wallet: bytes, amount: int, ref: bytes | None = None) -> SentEvent:
        return await self._say(Deposit(of_wallet, amount, self._now(), ref))

    async def withdraw(self, of_wallet: bytes, amount: int, ref: bytes | None = None) -> SentEvent:
        """With a `ref`, a second try is the same withdrawal, and is refused as a copy."""
        return await self._say(Withdraw(of_wallet, amount, self._now(), ref))

    async def transfer(
        self, of_wallet: bytes, to_wallet: bytes, amount: int, transfer: bytes | None = None
    ) -> SentEvent:
        """With the same id, a second try is the same transfer, and is refused as a copy."""
        known_by = transfer_id(os.urandom(32)) if transfer is None else transfer
        return await self._say(Transfer(of_wallet, to_wallet, amount, self._now(), known_by))

    async def adjust(self, of_wallet: bytes, delta: int, reason: str, ref: bytes | None = None) -> SentEvent:
        return await self._say(Adjust(of_wallet, delta, self._now(), reason, ref))

    async def limit(self, of_wallet: bytes, daily_limit: int | None) -> SentEvent:
        """Without a limit, the one that there is is lifted."""
        return await self._say(Limit(of_wallet, daily_limit, self._now()))

    async def freeze(self, of_wallet: bytes, reason: str | None = None) -> SentEvent:
        return await self._say(Freeze(of_wallet, self._now(), reason))

    async def unfreeze(self, of_wallet: bytes, reason: str | None = None) -> SentEvent:
        return await self._say(Unfreeze(of_wallet, self._now(), reason))

    def _now(self) -> int:
        return self.view.source.now()

    async def _say(self, event: Event) -> SentEvent:
        return await EventSender(self.view).send(event)
