"""`veen wallet`: balances as folds of a stream."""

import os
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from plumbing.cli.command import Misuse, argument, command, group, option
from veen.cli.kit import output, values
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Result
from veen.cli.kit.state_session import (
    FAULT_COLUMNS,
    STEP_COLUMNS,
    Answer,
    ReadSession,
    SendSession,
    SentResult,
    add_faults,
    fault_data,
    read_command,
    send_command,
    step_data,
)
from veen.core import Unavailable, naming
from veen.overlays import Event, FoldStep
from veen.overlays import wallet as wallets
from veen.overlays.wallet import WALLETS, Wallets
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
    wallet_stream,
)
from veen.state.state_view import shown

app = group(
    "wallet",
    """Open wallets, transfer amounts between them, and show balances with their history.

    Each wallet has its own stream; --stream names one that several wallets share. Amounts are whole numbers of the
    smallest unit. An event that the rules reject is not sent. If it is sent with --blind, it has no effect and is
    listed as a fault.
    """,
)

_wallet_id = values.id_parser("a wallet")
WalletId: TypeAlias = Annotated[bytes, argument("WALLET", "the wallet, by its 64 hex digits", parser=_wallet_id)]
Amount: TypeAlias = Annotated[
    int, argument("AMOUNT", "the amount, in the smallest unit of the currency", parser=values.amount)
]
Ref: TypeAlias = Annotated[
    bytes | None, option("--ref TEXT", "an external reference: text, or hex: and bytes", parser=values.data_of)
]
Reason: TypeAlias = Annotated[str | None, option("--reason TEXT", "the reason")]
Realm: TypeAlias = Annotated[
    bytes, option("--realm NAME", "the realm, by name or 64 hex digits", parser=naming.realm_id)
]
Owner: TypeAlias = Annotated[
    bytes, option("--owner HEX", "the owner's ctx_id, 64 hex digits", parser=values.id_parser("a ctx_id"))
]
Currency: TypeAlias = Annotated[str, option("--currency CODE", "the currency, like JPY")]


@read_command(
    app,
    "balance",
    "veen wallet balance 7d2039… --stream ledger",
    "veen wallet balance 7d2039… --at 120 --prove --out balance.evidence",
)
async def balance(session: ReadSession, wallet: WalletId) -> Answer:
    """Show the balance of a wallet, now or after an earlier entry."""
    state = await session.open(*_folding(session.options.stream, wallet))
    found = state.state(wallet)
    if not found.exists:
        raise hinted(Unavailable(f"there is no such wallet at entry {shown(state.at)}"), "veen wallet open opens one")
    plain = _plain(wallet, found)
    return Answer(plain, facts=[name for name in plain if name != "exists"], parts=(wallet,))


@read_command(app, "list", "veen wallet list --stream ledger", "veen wallet list --stream ledger --at 120 --json")
async def list_(session: ReadSession) -> Answer:
    """List the wallets of a stream with their balances."""
    found = {part: one for part, one in (await session.open(WALLETS)).states.items() if one.exists}
    columns = (("wallet", lambda row: row["wallet_id"].hex()), "balance", ("status", _status))
    data = [_plain(part, one) for part, one in found.items()]
    return Answer({"wallets": data}, rows="wallets", columns=columns, parts=tuple(found))


@read_command(app, "history", "veen wallet history 7d2039… --stream ledger", "veen wallet history 7d2039… --json")
async def history(session: ReadSession, wallet: WalletId) -> Answer:
    """Show every event that changed a wallet, in log order."""
    overlay, stream = _folding(session.options.stream, wallet)
    steps, state, data = tuple((await session.open(overlay, stream)).history(wallet)), overlay.INITIAL, []
    for step in steps:
        state = overlay.apply(state, step)
        data.append({**step_data(step), "event": _describe(step), "balance": state.balance})
    columns = (*STEP_COLUMNS, "event", "balance")
    document = {"wallet_id": wallet, "history": data}
    return Answer(document, rows="history", columns=columns, parts=(wallet,), steps=steps)


@read_command(
    app, "violations", "veen wallet violations --stream ledger", "veen wallet violations --stream ledger --json"
)
async def violations(session: ReadSession) -> Answer:
    """List debits that exceeded a balance or a limit.

    They had no effect.
    """
    found = fault_data(wallets.violations((await session.open(WALLETS)).faults()))
    remarks = () if found else ("no debit exceeded a balance or a limit",)
    return Answer({"violations": found}, rows="violations", columns=FAULT_COLUMNS, remarks=remarks)


@send_command(app, "open", "veen wallet open --realm shop --owner 9e3c07… --currency JPY --stream ledger")
async def open_(session: SendSession, realm: Realm, owner: Owner, currency: Currency) -> SentResult:
    """Open the wallet of an owner in a realm, for one currency."""
    wallet = _derive(realm, owner, currency)
    return await _send(session, wallet, lambda now: Open(wallet, realm, owner, currency, now))


@command(app, "id", "veen wallet id --realm shop --owner 9e3c07… --currency JPY")
def id_(realm: Realm, owner: Owner, currency: Currency, as_json: JsonOption = False) -> None:
    """Show the id of a wallet and its own stream, whether it is open or not."""
    wallet = _derive(realm, owner, currency)
    derived = {"wallet_id": wallet, "stream": wallet_stream(wallet)}
    Result({**derived, "realm_id": realm, "ctx_id": owner, "currency": currency}).show(as_json)


@send_command(app, "close", "veen wallet close 7d2039… --stream ledger", "veen wallet close 7d2039… --json")
async def close(session: SendSession, wallet: WalletId) -> SentResult:
    """Close a wallet.

    It accepts no further deposits, withdrawals or transfers.
    """
    return await _send(session, wallet, lambda now: Close(wallet, now))


@send_command(
    app, "deposit", "veen wallet deposit 7d2039… 500 --stream ledger", "veen wallet deposit 7d2039… 500 --ref inv-7"
)
async def deposit(session: SendSession, wallet: WalletId, amount: Amount, ref: Ref = None) -> SentResult:
    """Deposit an amount into a wallet.

    A second deposit with the same --ref counts again.
    """
    return await _send(session, wallet, lambda now: Deposit(wallet, amount, now, ref))


@send_command(
    app, "withdraw", "veen wallet withdraw 7d2039… 100 --stream ledger", "veen wallet withdraw 7d2039… 9 --ref w-1"
)
async def withdraw(session: SendSession, wallet: WalletId, amount: Amount, ref: Ref = None) -> SentResult:
    """Withdraw an amount from a wallet.

    A second withdrawal with the same --ref is the same withdrawal.
    """
    return await _send(session, wallet, lambda now: Withdraw(wallet, amount, now, ref))


@send_command(
    app,
    "transfer",
    "veen wallet transfer 7d2039… 84d71e… 30 --stream ledger",
    "veen wallet transfer 7d2039… 84d71e… 30 --id 17f296… --json",
)
async def transfer(
    session: SendSession,
    wallet: WalletId,
    to: Annotated[bytes, argument("TO", "the receiving wallet, by its 64 hex digits", parser=_wallet_id)],
    amount: Amount,
    known_by: Annotated[
        bytes | None,
        option("--id HEX", "the transfer's own id", default="a new one", parser=values.id_parser("a transfer")),
    ] = None,
) -> SentResult:
    """Transfer an amount from one wallet to another.

    A second transfer with the same --id is the same transfer. If each wallet has its own stream, the event is also sent
    to the receiver's stream, with the first message as its parent; the receiver is credited once, even if that is
    repeated.
    """
    id_ = transfer_id(os.urandom(32)) if known_by is None else known_by
    made = Transfer(wallet, to, amount, (await session.client()).session.clock.now(), id_)
    sent = await _send(session, wallet, lambda now: made, transfer_id=id_)
    if session.options.stream is None and sent.event.applied:
        await _mirror(session, wallet_stream(to), made, sent.event.msg_id)
    return sent


@send_command(app, "adjust", "veen wallet adjust 7d2039… --delta -5 --reason fee --stream ledger")
async def adjust(
    session: SendSession,
    wallet: WalletId,
    delta: Annotated[int, option("--delta N", "the amount to add; negative to subtract")],
    reason: Annotated[str, option("--reason TEXT", "the reason of the correction")],
    ref: Ref = None,
) -> SentResult:
    """Correct a balance, up or down."""
    return await _send(session, wallet, lambda now: Adjust(wallet, delta, now, reason, ref))


@send_command(
    app, "limit", "veen wallet limit 7d2039… 1000 --stream ledger", "veen wallet limit 7d2039… --stream ledger"
)
async def limit(
    session: SendSession,
    wallet: WalletId,
    daily: Annotated[
        int | None, argument("AMOUNT", "the maximum outflow per day; omit for no limit", parser=values.amount)
    ] = None,
) -> SentResult:
    """Limit the outflow of a wallet per day, or remove the limit."""
    return await _send(session, wallet, lambda now: Limit(wallet, daily, now))


@send_command(
    app, "freeze", "veen wallet freeze 7d2039… --reason lost --stream ledger", "veen wallet freeze 7d2039… --json"
)
async def freeze(session: SendSession, wallet: WalletId, reason: Reason = None) -> SentResult:
    """Block withdrawals and transfers from a wallet until it is unfrozen."""
    return await _send(session, wallet, lambda now: Freeze(wallet, now, reason))


@send_command(app, "unfreeze", "veen wallet unfreeze 7d2039… --stream ledger", "veen wallet unfreeze 7d2039… --json")
async def unfreeze(session: SendSession, wallet: WalletId, reason: Reason = None) -> SentResult:
    """Allow withdrawals and transfers from a wallet again."""
    return await _send(session, wallet, lambda now: Unfreeze(wallet, now, reason))


def _folding(stream: str | None, wallet: bytes) -> tuple[Wallets, str]:
    """The overlay and the stream of a wallet: its own stream, or the named stream with all its wallets."""
    return (Wallets(wallet), wallet_stream(wallet).hex()) if stream is None else (WALLETS, stream)


def _plain(part: bytes, state: Wallet) -> dict[str, Any]:
    """A wallet's state. Sums may exceed 64 bits and stay numbers here."""
    sums = {"balance": state.balance, "pending_daily_spent": state.pending_daily_spent}
    return {**WALLETS.plain(part, state), **sums}


def _status(plain: dict[str, Any]) -> str:
    return "closed" if plain["closed"] else "frozen" if plain["frozen"] else "open"


def _describe(step: FoldStep) -> str:
    """Name the event of a step with its amount, such as `deposit 500`."""
    event: Any = step.event
    word = type(event).__name__.lower()
    if word == "transfer":
        word = "transfer out" if event.wallet_id == step.part else "transfer in"
    amount = next((getattr(event, name) for name in ("amount", "delta", "daily_limit") if hasattr(event, name)), None)
    return word if amount is None else f"{word} {amount}"


def _derive(realm: bytes, owner: bytes, currency: str) -> bytes:
    if not currency.isascii() or not currency:
        raise Misuse(f"{currency!r} is not a currency code", "give a code in ASCII, like JPY")
    return wallet_id(realm, owner, currency)


async def _send(session: SendSession, wallet: bytes, make: Callable[[int], Event], **shown: bytes) -> SentResult:
    """Send an event of a wallet at the hub's time."""
    overlay, stream = _folding(session.options.stream, wallet)
    return await session.send(overlay, make, {"wallet_id": wallet, **shown}, default=stream)


async def _mirror(session: SendSession, stream_id: bytes, event: Event, origin: bytes) -> None:
    """Send the same event to the receiver's stream, if this client has the stream's key."""
    if session.folder.stream_keys.public(stream_id) is None:
        output.remark(
            f"the client has no key of the receiver's stream {stream_id.hex()}; the receiver is credited once the "
            "event is sent there"
        )
        return
    sent = await (await session.client()).send(stream_id, event.encode(), schema=event.SCHEMA, parent_id=origin)
    output.remark(f"also sent to the receiver's stream, as entry {sent.stream_seq}")


add_faults(app, "veen wallet", lambda session: session.open(WALLETS), example=" --stream NAME")
