"""`veen wallet`: balances as folds of a stream."""

import os
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import Misuse, command, group
from veen.cli.discovery.directory_view import sendable
from veen.cli.kit import faults_command, output, read_state, render_state, sanitize, send_event, values
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command
from veen.client.client import Client
from veen.core import Unavailable, cbor, naming
from veen.overlays import Event, FoldStep
from veen.overlays import wallet as wallets
from veen.overlays.wallet import WALLETS, Function, Wallets
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
    wallet_stream,
)
from veen.state import EventSender, SentEvent, StateView
from veen.state.state_view import StateAt, shown

WalletReading: TypeAlias = StateAt[Wallet, Function]


app = group(
    "wallet",
    """Open wallets, transfer amounts between them, and show balances with their history.

    Each wallet has its own stream; --stream names one that several wallets share. Amounts are whole numbers of the
    smallest unit. An event that the rules reject is not sent. If it is sent with --blind, it has no effect and is
    listed as a fault.
    """,
)

WalletId: TypeAlias = Annotated[str, typer.Argument(metavar="WALLET", help="the wallet, by its 64 hex digits")]
Amount: TypeAlias = Annotated[
    int, typer.Argument(metavar="AMOUNT", help="the amount, in the smallest unit of the currency", parser=values.amount)
]
Ref: TypeAlias = Annotated[
    str | None, typer.Option("--ref", metavar="TEXT", help="an external reference: text, or hex: and bytes")
]
Reason: TypeAlias = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="the reason")]
Realm: TypeAlias = Annotated[
    str, typer.Option("--realm", metavar="NAME", help="the realm, by name or 64 hex digits", show_default=False)
]
Owner: TypeAlias = Annotated[
    str, typer.Option("--owner", metavar="HEX", help="the owner's ctx_id, 64 hex digits", show_default=False)
]
Currency: TypeAlias = Annotated[
    str, typer.Option("--currency", metavar="CODE", help="the currency, like JPY", show_default=False)
]


def _of(named: str | None, wallet: bytes) -> tuple[Wallets, str]:
    """Return the overlay and the stream of a wallet: its own stream, or the named stream with all its wallets."""

    if named is not None:
        return WALLETS, named
    return Wallets(wallet), wallet_stream(wallet).hex()


@read_command(
    app,
    "balance",
    "veen wallet balance 7d2039… --stream ledger",
    "veen wallet balance 7d2039… --at 120 --prove --out balance.evidence",
)
def balance(options: ReadOptions, wallet: WalletId) -> None:
    """Show the balance of a wallet, now or after an earlier entry."""

    wallet_id = values.id_of(wallet, "a wallet")
    overlay, stream = _of(options.stream, wallet_id)

    def look(reading: WalletReading) -> StateAnswer:
        found = reading.state(wallet_id)
        if not found.exists:
            raise hinted(
                Unavailable(f"there is no such wallet at entry {shown(reading.at)}"), "veen wallet open opens one"
            )
        plain = _plain(wallet_id, found)
        facts = {name: render_state.plain_cell(value) for name, value in plain.items() if name != "exists"}
        return read_state.StateAnswer(facts=facts, data=plain, parts=(wallet_id,))

    read_state.show_state(options, overlay, look, stream=stream)


@read_command(app, "list", "veen wallet list --stream ledger", "veen wallet list --stream ledger --at 120 --json")
def list_(options: ReadOptions) -> None:
    """List the wallets of a stream with their balances."""

    def look(reading: WalletReading) -> StateAnswer:
        found = [(part, state) for part, state in reading.states.items() if state.exists]
        rows = [
            (part, render_state.plain_cell(one.balance), "closed" if one.closed else "frozen" if one.frozen else "open")
            for part, one in found
        ]
        data = [_plain(part, one) for part, one in found]
        parts = tuple(part for part, _ in found)
        return read_state.StateAnswer(
            columns=("wallet", "balance", "status"), rows=rows, data={"wallets": data}, parts=parts
        )

    read_state.show_state(options, WALLETS, look)


def _plain(part: bytes, state: Wallet) -> dict[str, cbor.Value]:
    """Return a wallet's state for JSON. Sums may exceed 64 bits and stay numbers here."""
    sums = {"balance": state.balance, "pending_daily_spent": state.pending_daily_spent}
    return {**WALLETS.plain(part, state), **sums}


@read_command(app, "history", "veen wallet history 7d2039… --stream ledger", "veen wallet history 7d2039… --json")
def history(options: ReadOptions, wallet: WalletId) -> None:
    """Show every event that changed a wallet, in log order."""

    wallet_id = values.id_of(wallet, "a wallet")
    overlay, stream = _of(options.stream, wallet_id)

    def look(reading: WalletReading) -> StateAnswer:
        rows, data, steps, state = [], [], tuple(reading.history(wallet_id)), overlay.INITIAL
        for step in steps:
            state = overlay.apply(state, step)
            place = shown(step.at), output.moment(step.entry.hub_ts), sanitize.short(step.entry.client_id)
            rows.append((*place, _describe(step), render_state.plain_cell(state.balance)))
            data.append({**render_state.step_data(step), "event": _describe(step), "balance": state.balance})
        columns = ("entry", "hub_ts", "client_id", "event", "balance")
        document = {"wallet_id": wallet_id, "history": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=document, parts=(wallet_id,), steps=steps)

    read_state.show_state(options, overlay, look, stream=stream)


@read_command(
    app, "violations", "veen wallet violations --stream ledger", "veen wallet violations --stream ledger --json"
)
def violations(options: ReadOptions) -> None:
    """List debits that exceeded a balance or a limit.

    They had no effect.
    """

    def look(reading: WalletReading) -> StateAnswer:
        found = list(wallets.violations(reading.faults()))
        rows, data = render_state.fault_rows(found), {"violations": render_state.fault_data(found)}
        remarks = () if found else ("no debit exceeded a balance or a limit",)
        return read_state.StateAnswer(columns=render_state.FAULT_COLUMNS, rows=rows, data=data, remarks=remarks)

    read_state.show_state(options, WALLETS, look)


def _describe(step: FoldStep) -> str:
    """Name the event of a step with its amount, such as `deposit 500`."""
    event: Any = step.event
    word = type(event).__name__.lower()
    if word == "transfer":
        word = "transfer out" if event.wallet_id == step.part else "transfer in"
    amount = next((getattr(event, name) for name in ("amount", "delta", "daily_limit") if hasattr(event, name)), None)
    return word if amount is None else f"{word} {amount}"


@send_command(app, "open", "veen wallet open --realm shop --owner 9e3c07… --currency JPY --stream ledger")
def open_(options: SendOptions, realm: Realm, owner: Owner, currency: Currency) -> None:
    """Open the wallet of an owner in a realm, for one currency."""

    wallet_id, realm_id, ctx_id = _names(realm, owner, currency)
    _send(options, wallet_id, lambda now: Open(wallet_id, realm_id, ctx_id, currency, now))


def _names(realm: str, owner: str, currency: str) -> tuple[bytes, bytes, bytes]:
    from veen.overlays.wallet_ledger import wallet_id

    if not currency.isascii() or not currency:
        raise Misuse(f"{currency!r} is not a currency code", "give a code in ASCII, like JPY")
    realm_id, ctx_id = naming.realm_id(realm), values.id_of(owner, "a ctx_id")
    return wallet_id(realm_id, ctx_id, currency), realm_id, ctx_id


@command(app, "id", "veen wallet id --realm shop --owner 9e3c07… --currency JPY")
def id_(realm: Realm, owner: Owner, currency: Currency, as_json: JsonOption = False) -> None:
    """Show the id of a wallet and its own stream, whether it is open or not."""

    wallet_id, realm_id, ctx_id = _names(realm, owner, currency)
    named: dict[str, output.Value] = {"wallet_id": wallet_id, "stream": wallet_stream(wallet_id)}
    output.facts({**named, "realm_id": realm_id, "ctx_id": ctx_id, "currency": currency}, as_json)


@send_command(app, "close", "veen wallet close 7d2039… --stream ledger", "veen wallet close 7d2039… --json")
def close(options: SendOptions, wallet: WalletId) -> None:
    """Close a wallet.

    It accepts no further deposits, withdrawals or transfers.
    """

    wallet_id = _id(wallet)
    _send(options, wallet_id, lambda now: Close(wallet_id, now))


@send_command(
    app, "deposit", "veen wallet deposit 7d2039… 500 --stream ledger", "veen wallet deposit 7d2039… 500 --ref inv-7"
)
def deposit(options: SendOptions, wallet: WalletId, amount: Amount, ref: Ref = None) -> None:
    """Deposit an amount into a wallet.

    A second deposit with the same --ref counts again.
    """

    wallet_id, known_by = _id(wallet), _ref(ref)
    _send(options, wallet_id, lambda now: Deposit(wallet_id, amount, now, known_by))


@send_command(
    app, "withdraw", "veen wallet withdraw 7d2039… 100 --stream ledger", "veen wallet withdraw 7d2039… 9 --ref w-1"
)
def withdraw(options: SendOptions, wallet: WalletId, amount: Amount, ref: Ref = None) -> None:
    """Withdraw an amount from a wallet.

    A second withdrawal with the same --ref is the same withdrawal.
    """

    wallet_id, known_by = _id(wallet), _ref(ref)
    _send(options, wallet_id, lambda now: Withdraw(wallet_id, amount, now, known_by))


@send_command(
    app,
    "transfer",
    "veen wallet transfer 7d2039… 84d71e… 30 --stream ledger",
    "veen wallet transfer 7d2039… 84d71e… 30 --id 17f296… --json",
)
def transfer(
    options: SendOptions,
    wallet: WalletId,
    to: Annotated[str, typer.Argument(metavar="TO", help="the receiving wallet, by its 64 hex digits")],
    amount: Amount,
    known_by: Annotated[
        str | None, typer.Option("--id", metavar="HEX", help="the transfer's own id", show_default="a new one")
    ] = None,
) -> None:
    """Transfer an amount from one wallet to another.

    A second transfer with the same --id is the same transfer. If each wallet has its own stream, the event is also sent
    to the receiver's stream, with the first message as its parent; the receiver is credited once, even if that is
    repeated.
    """

    wallet_id, to_id = _id(wallet), _id(to)
    own = transfer_id(os.urandom(32)) if known_by is None else _id(known_by, "a transfer")
    mirror = to_id if options.stream is None else None
    _send(options, wallet_id, lambda now: Transfer(wallet_id, to_id, amount, now, own), {"transfer_id": own}, mirror)


@send_command(app, "adjust", "veen wallet adjust 7d2039… --delta -5 --reason fee --stream ledger")
def adjust(
    options: SendOptions,
    wallet: WalletId,
    delta: Annotated[int, typer.Option("--delta", metavar="N", help="the amount to add; negative to subtract")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="the reason of the correction")],
    ref: Ref = None,
) -> None:
    """Correct a balance, up or down."""

    wallet_id, known_by = _id(wallet), _ref(ref)
    _send(options, wallet_id, lambda now: Adjust(wallet_id, delta, now, reason, known_by))


@send_command(
    app, "limit", "veen wallet limit 7d2039… 1000 --stream ledger", "veen wallet limit 7d2039… --stream ledger"
)
def limit(
    options: SendOptions,
    wallet: WalletId,
    daily: Annotated[
        int | None,
        typer.Argument(metavar="AMOUNT", help="the maximum outflow per day; omit for no limit", parser=values.amount),
    ] = None,
) -> None:
    """Limit the outflow of a wallet per day, or remove the limit."""

    wallet_id = _id(wallet)
    _send(options, wallet_id, lambda now: Limit(wallet_id, daily, now))


@send_command(
    app, "freeze", "veen wallet freeze 7d2039… --reason lost --stream ledger", "veen wallet freeze 7d2039… --json"
)
def freeze(options: SendOptions, wallet: WalletId, reason: Reason = None) -> None:
    """Block withdrawals and transfers from a wallet until it is unfrozen."""

    wallet_id = _id(wallet)
    _send(options, wallet_id, lambda now: Freeze(wallet_id, now, reason))


@send_command(app, "unfreeze", "veen wallet unfreeze 7d2039… --stream ledger", "veen wallet unfreeze 7d2039… --json")
def unfreeze(options: SendOptions, wallet: WalletId, reason: Reason = None) -> None:
    """Allow withdrawals and transfers from a wallet again."""

    wallet_id = _id(wallet)
    _send(options, wallet_id, lambda now: Unfreeze(wallet_id, now, reason))


def _id(text: str, what: str = "a wallet") -> bytes:
    return values.id_of(text, what)


def _ref(text: str | None) -> bytes | None:
    return None if text is None else values.data_of(text)


def _send(
    options: SendOptions,
    wallet_id: bytes,
    make: Callable[[int], Event],
    shown: dict[str, output.Value] | None = None,
    mirror: bytes | None = None,
) -> None:
    """Send an event of a wallet at the hub's time, unless the state rejects it; then also to the stream of `mirror`."""

    overlay, stream = _of(options.stream, wallet_id)

    async def work(client: Client, name: str) -> SentEvent:
        event = sendable(make(client.session.clock.now()))
        if options.blind:
            sent = SentEvent(await client.send(name, event.encode(), schema=event.SCHEMA))
        else:
            async with StateView.of(client, name, overlay, cached=not options.no_cache) as view:
                sent = await EventSender(view).send(event)
        if mirror is not None and sent.applied:
            await _mirror(client, wallet_stream(mirror), event, sent.msg_id)
        return sent

    rows: dict[str, output.Value] = {"wallet_id": wallet_id, **(shown or {})}
    send_event.show_sent(send_event.run_at_hub(options, overlay, work, stream=stream), rows, options)


async def _mirror(client: Client, stream_id: bytes, event: Event, origin: bytes) -> None:
    """Send the same event to the receiver's stream, if this client has the stream's key."""
    if client.dir.stream_keys.public(stream_id) is None:
        output.remark(
            f"the client has no key of the receiver's stream {stream_id.hex()}; the receiver is credited once the "
            "event is sent there"
        )
        return
    sent = await client.send(stream_id, event.encode(), schema=event.SCHEMA, parent_id=origin)
    output.remark(f"also sent to the receiver's stream, as entry {sent.stream_seq}")


faults_command.add(app, "veen wallet", WALLETS)
