"""Wallets on a stream. Each operation is checked against the state before it is sent.

async with WalletBook.of(client, "ledger") as book:
    await book.deposit(wallet_id, 500)
    assert (await book.wallet(wallet_id)).balance == 500
"""

import os
from types import TracebackType
from typing import Self

from veen.client.client import Client
from veen.overlays import At, Event, EventFault
from veen.overlays.wallet import WALLETS, Function, violations
from veen.overlays.wallet_ledger import (
    Adjust,
    Close,
    Deposit,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    Wallet,
    Withdraw,
    transfer_id,
    wallet_id,
)
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
        """Logged debits that exceeded balance or limit. They were not applied."""
        async with self.view.reading(at) as reading:
            return list(violations(reading.faults()))

    async def open(self, realm_id: bytes, ctx_id: bytes, currency: str) -> SentEvent:
        of_wallet = wallet_id(realm_id, ctx_id, currency)
        return await self._send(Open(of_wallet, realm_id, ctx_id, currency, self._now()))

    async def close(self, of_wallet: bytes) -> SentEvent:
        return await self._send(Close(of_wallet, self._now()))

    async def deposit(self, of_wallet: bytes, amount: int, ref: bytes | None = None) -> SentEvent:
        return await self._send(Deposit(of_wallet, amount, self._now(), ref))

    async def withdraw(self, of_wallet: bytes, amount: int, ref: bytes | None = None) -> SentEvent:
        """With a `ref`, a retry is the same withdrawal and is refused as a copy."""
        return await self._send(Withdraw(of_wallet, amount, self._now(), ref))

    async def transfer(
        self, of_wallet: bytes, to_wallet: bytes, amount: int, transfer: bytes | None = None
    ) -> SentEvent:
        """With the same `transfer` id, a retry is the same transfer and is refused as a copy."""
        id_ = transfer_id(os.urandom(32)) if transfer is None else transfer
        return await self._send(Transfer(of_wallet, to_wallet, amount, self._now(), id_))

    async def adjust(self, of_wallet: bytes, delta: int, reason: str, ref: bytes | None = None) -> SentEvent:
        return await self._send(Adjust(of_wallet, delta, self._now(), reason, ref))

    async def limit(self, of_wallet: bytes, daily_limit: int | None) -> SentEvent:
        """Set the daily limit; None removes it."""
        return await self._send(Limit(of_wallet, daily_limit, self._now()))

    async def freeze(self, of_wallet: bytes, reason: str | None = None) -> SentEvent:
        return await self._send(Freeze(of_wallet, self._now(), reason))

    async def unfreeze(self, of_wallet: bytes, reason: str | None = None) -> SentEvent:
        return await self._send(Unfreeze(of_wallet, self._now(), reason))

    def _now(self) -> int:
        return self.view.source.now()

    async def _send(self, event: Event) -> SentEvent:
        return await EventSender(self.view).send(event)
