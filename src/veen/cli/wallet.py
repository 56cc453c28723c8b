"""`veen wallet`: accounts as folds of a stream."""

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import Misuse, command, group
from veen.cli.kit import faults_command, output, values
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from veen.cli.kit.read_state import StateAnswer
    from veen.client.client import Client
    from veen.core import cbor
    from veen.overlays import Event, FoldStep
    from veen.overlays.wallet import Wallets
    from veen.overlays.wallet.ledger import Wallet
    from veen.overlays.wallet.transition import Function
    from veen.state import SentEvent
    from veen.state.state_at import StateAt

    WalletReading: TypeAlias = StateAt[Wallet, Function]

app = group(
    "wallet",
    """Open wallets, move amounts between them, and show what is in them and why.

    A wallet has a stream of its own, which is used where --stream does not name one that several wallets share. Amounts
    are whole numbers of the smallest unit. What the rules refuse is not sent; what someone sent all the same changes
    nothing, and is listed.
    """,
)

WalletId: TypeAlias = Annotated[str, typer.Argument(metavar="WALLET", help="which wallet, by its 64 hex digits")]
Amount: TypeAlias = Annotated[
    int, typer.Argument(metavar="AMOUNT", help="how much, in the smallest unit of the currency", parser=values.amount)
]
Ref: TypeAlias = Annotated[
    str | None, typer.Option("--ref", metavar="TEXT", help="what it is known by outside: text, or hex: and bytes")
]
Reason: TypeAlias = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why")]
Realm: TypeAlias = Annotated[
    str, typer.Option("--realm", metavar="NAME", help="the realm, by name or 64 hex digits", show_default=False)
]
Owner: TypeAlias = Annotated[
    str, typer.Option("--owner", metavar="HEX", help="the owner's ctx_id, 64 hex digits", show_default=False)
]
Currency: TypeAlias = Annotated[
    str, typer.Option("--currency", metavar="CODE", help="the currency, like JPY", show_default=False)
]


def _overlay() -> "Wallets":
    from veen.overlays.wallet import WALLETS

    return WALLETS


def _of(named: str | None, wallet: bytes) -> "tuple[Wallets, str]":
    """The overlay and the stream of a wallet: its own, or all wallets of the stream that is named."""
    from veen.overlays.wallet import Wallets, wallet_stream

    if named is not None:
        return _overlay(), named
    return Wallets(wallet), wallet_stream(wallet).hex()


@read_command(
    app,
    "balance",
    "veen wallet balance 7d2039… --stream ledger",
    "veen wallet balance 7d2039… --at 120 --prove --out balance.evidence",
)
def balance(asked: ReadOptions, wallet: WalletId) -> None:
    """Show what is in a wallet, now or at any moment before."""
    from veen.cli.kit import read_state, render_state, values
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.state.state_view import shown

    wallet_id = values.id_of(wallet, "a wallet")
    overlay, stream = _of(asked.stream, wallet_id)

    def look(reading: "WalletReading") -> "StateAnswer":
        found = reading.state(wallet_id)
        if not found.exists:
            raise hinted(
                Unavailable(f"there is no such wallet at entry {shown(reading.at)}"), "veen wallet open opens it"
            )
        plain = _plain(wallet_id, found)
        facts = {name: render_state.plain_cell(value) for name, value in plain.items() if name != "exists"}
        return read_state.StateAnswer(facts=facts, data=plain, parts=(wallet_id,))

    read_state.show_state(asked, overlay, look, stream=stream)


@read_command(app, "list", "veen wallet list --stream ledger", "veen wallet list --stream ledger --at 120 --json")
def list_(asked: ReadOptions) -> None:
    """List the wallets of a stream, and what is in them."""
    from veen.cli.kit import read_state, render_state

    def look(reading: "WalletReading") -> "StateAnswer":
        found = [(part, state) for part, state in reading.states.items() if state.exists]
        rows = [
            (part, render_state.plain_cell(one.balance), "closed" if one.closed else "frozen" if one.frozen else "open")
            for part, one in found
        ]
        data = [_plain(part, one) for part, one in found]
        parts = tuple(part for part, _ in found)
        return read_state.StateAnswer(
            columns=("wallet", "balance", "is"), rows=rows, data={"wallets": data}, parts=parts
        )

    read_state.show_state(asked, _overlay(), look)


def _plain(part: bytes, state: "Wallet") -> "dict[str, cbor.Value]":
    """A wallet's state, with numbers of any size as numbers."""
    sums = {"balance": state.balance, "pending_daily_spent": state.pending_daily_spent}
    return {**_overlay().plain(part, state), **sums}


@read_command(app, "history", "veen wallet history 7d2039… --stream ledger", "veen wallet history 7d2039… --json")
def history(asked: ReadOptions, wallet: WalletId) -> None:
    """Show everything that changed a wallet, in order."""
    from veen.cli.kit import read_state, render_state, sanitize, values
    from veen.state.state_view import shown

    wallet_id = values.id_of(wallet, "a wallet")
    overlay, stream = _of(asked.stream, wallet_id)

    def look(reading: "WalletReading") -> "StateAnswer":
        rows, data, steps, state = [], [], tuple(reading.history(wallet_id)), overlay.INITIAL
        for step in steps:
            state = overlay.apply(state, step)
            when, who = output.moment(step.entry.hub_ts), sanitize.short(step.entry.client_id)
            rows.append((shown(step.at), when, who, _word(step), render_state.plain_cell(state.balance)))
            data.append({**render_state.step_data(step), "event": _word(step), "balance": state.balance})
        columns, told = ("entry", "hub_ts", "client_id", "event", "balance"), {"wallet_id": wallet_id, "history": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=told, parts=(wallet_id,), steps=steps)

    read_state.show_state(asked, overlay, look, stream=stream)


@read_command(
    app, "violations", "veen wallet violations --stream ledger", "veen wallet violations --stream ledger --json"
)
def violations(asked: ReadOptions) -> None:
    """List debits beyond a balance or a limit that someone sent all the same.

    They changed nothing.
    """
    from veen.cli.kit import read_state, render_state
    from veen.overlays import wallet as wallets

    def look(reading: "WalletReading") -> "StateAnswer":
        found = list(wallets.violations(reading.faults()))
        rows, data = render_state.fault_rows(found), {"violations": render_state.fault_data(found)}
        remarks = () if found else ("nobody sent such a debit",)
        return read_state.StateAnswer(columns=render_state.FAULT_COLUMNS, rows=rows, data=data, remarks=remarks)

    read_state.show_state(asked, _overlay(), look)


def _word(step: "FoldStep") -> str:
    """What a step did to its wallet, in a few words."""
    event: Any = step.event
    word = type(event).__name__.lower()
    if word == "transfer":
        word = "transfer out" if event.wallet_id == step.part else "transfer in"
    amount = next((getattr(event, name) for name in ("amount", "delta", "daily_limit") if hasattr(event, name)), None)
    return word if amount is None else f"{word} {amount}"


@send_command(app, "open", "veen wallet open --realm shop --owner 9e3c07… --currency JPY --stream ledger")
def open_(asked: SendOptions, realm: Realm, owner: Owner, currency: Currency) -> None:
    """Open the wallet of an owner in a realm, for one currency."""
    from veen.overlays.wallet import Open

    wallet_id, realm_id, ctx_id = _names(realm, owner, currency)
    _send(asked, wallet_id, lambda now: Open(wallet_id, realm_id, ctx_id, currency, now))


def _names(realm: str, owner: str, currency: str) -> tuple[bytes, bytes, bytes]:
    from veen.cli.kit import values
    from veen.core import naming
    from veen.overlays.wallet import wallet_id

    if not currency.isascii() or not currency:
        raise Misuse(f"{currency!r} is no currency", "give a code in ASCII, like JPY")
    realm_id, ctx_id = naming.realm_id(realm), values.id_of(owner, "a ctx_id")
    return wallet_id(realm_id, ctx_id, currency), realm_id, ctx_id


@command(app, "id", "veen wallet id --realm shop --owner 9e3c07… --currency JPY")
def id_(realm: Realm, owner: Owner, currency: Currency, as_json: JsonOption = False) -> None:
    """Show the id of a wallet and the stream that is its own, whether it is open or not."""
    from veen.overlays.wallet import wallet_stream

    wallet_id, realm_id, ctx_id = _names(realm, owner, currency)
    named: dict[str, output.Value] = {"wallet_id": wallet_id, "stream": wallet_stream(wallet_id)}
    output.facts({**named, "realm_id": realm_id, "ctx_id": ctx_id, "currency": currency}, as_json)


@send_command(app, "close", "veen wallet close 7d2039… --stream ledger", "veen wallet close 7d2039… --json")
def close(asked: SendOptions, wallet: WalletId) -> None:
    """Close a wallet: nothing moves in or out of it any more."""
    from veen.overlays.wallet import Close

    wallet_id = _id(wallet)
    _send(asked, wallet_id, lambda now: Close(wallet_id, now))


@send_command(
    app, "deposit", "veen wallet deposit 7d2039… 500 --stream ledger", "veen wallet deposit 7d2039… 500 --ref inv-7"
)
def deposit(asked: SendOptions, wallet: WalletId, amount: Amount, ref: Ref = None) -> None:
    """Put an amount into a wallet.

    A second deposit with the same --ref is another deposit.
    """
    from veen.overlays.wallet import Deposit

    wallet_id, known_by = _id(wallet), _ref(ref)
    _send(asked, wallet_id, lambda now: Deposit(wallet_id, amount, now, known_by))


@send_command(
    app, "withdraw", "veen wallet withdraw 7d2039… 100 --stream ledger", "veen wallet withdraw 7d2039… 9 --ref w-1"
)
def withdraw(asked: SendOptions, wallet: WalletId, amount: Amount, ref: Ref = None) -> None:
    """Take an amount out of a wallet.

    With the same --ref, a second try is the same withdrawal.
    """
    from veen.overlays.wallet import Withdraw

    wallet_id, known_by = _id(wallet), _ref(ref)
    _send(asked, wallet_id, lambda now: Withdraw(wallet_id, amount, now, known_by))


@send_command(
    app,
    "transfer",
    "veen wallet transfer 7d2039… 84d71e… 30 --stream ledger",
    "veen wallet transfer 7d2039… 84d71e… 30 --id 17f296… --json",
)
def transfer(
    asked: SendOptions,
    wallet: WalletId,
    to: Annotated[str, typer.Argument(metavar="TO", help="the wallet it goes to, by its 64 hex digits")],
    amount: Amount,
    known_by: Annotated[
        str | None, typer.Option("--id", metavar="HEX", help="the transfer's own id", show_default="a new one")
    ] = None,
) -> None:
    """Move an amount from one wallet to another.

    With the same --id, a second try is the same transfer. Where each wallet has a stream of its own, the same event is
    sent to the receiver's stream as well, naming the first as its parent: it is credited once, however often that is
    repeated.
    """
    import os

    from veen.overlays.wallet import Transfer, transfer_id

    wallet_id, to_id = _id(wallet), _id(to)
    own = transfer_id(os.urandom(32)) if known_by is None else _id(known_by, "a transfer")
    mirror = to_id if asked.stream is None else None
    _send(asked, wallet_id, lambda now: Transfer(wallet_id, to_id, amount, now, own), {"transfer_id": own}, mirror)


@send_command(app, "adjust", "veen wallet adjust 7d2039… --delta -5 --reason fee --stream ledger")
def adjust(
    asked: SendOptions,
    wallet: WalletId,
    delta: Annotated[int, typer.Option("--delta", metavar="N", help="how much more; less than 0 takes away")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="why it must be corrected")],
    ref: Ref = None,
) -> None:
    """Correct a balance, up or down."""
    from veen.overlays.wallet import Adjust

    wallet_id, known_by = _id(wallet), _ref(ref)
    _send(asked, wallet_id, lambda now: Adjust(wallet_id, delta, now, reason, known_by))


@send_command(
    app, "limit", "veen wallet limit 7d2039… 1000 --stream ledger", "veen wallet limit 7d2039… --stream ledger"
)
def limit(
    asked: SendOptions,
    wallet: WalletId,
    daily: Annotated[
        int | None,
        typer.Argument(
            metavar="AMOUNT", help="the most that may leave it in a day; else no limit", parser=values.amount
        ),
    ] = None,
) -> None:
    """Limit what may leave a wallet in a day, or lift the limit."""
    from veen.overlays.wallet import Limit

    wallet_id = _id(wallet)
    _send(asked, wallet_id, lambda now: Limit(wallet_id, daily, now))


@send_command(
    app, "freeze", "veen wallet freeze 7d2039… --reason lost --stream ledger", "veen wallet freeze 7d2039… --json"
)
def freeze(asked: SendOptions, wallet: WalletId, reason: Reason = None) -> None:
    """Let nothing leave a wallet until it is unfrozen."""
    from veen.overlays.wallet import Freeze

    wallet_id = _id(wallet)
    _send(asked, wallet_id, lambda now: Freeze(wallet_id, now, reason))


@send_command(app, "unfreeze", "veen wallet unfreeze 7d2039… --stream ledger", "veen wallet unfreeze 7d2039… --json")
def unfreeze(asked: SendOptions, wallet: WalletId, reason: Reason = None) -> None:
    """Let amounts leave a wallet again."""
    from veen.overlays.wallet import Unfreeze

    wallet_id = _id(wallet)
    _send(asked, wallet_id, lambda now: Unfreeze(wallet_id, now, reason))


def _id(text: str, what: str = "a wallet") -> bytes:
    from veen.cli.kit import values

    return values.id_of(text, what)


def _ref(text: str | None) -> bytes | None:
    from veen.cli.kit import values

    return None if text is None else values.data_of(text)


def _send(
    asked: SendOptions,
    wallet_id: bytes,
    make: "Callable[[int], Event]",
    shown: "dict[str, output.Value] | None" = None,
    mirror: bytes | None = None,
) -> None:
    """Send an event of a wallet, at the hub's time, unless the wallet refuses it; to the stream of `mirror` as well."""
    from veen.cli.discovery.directory_view import sendable
    from veen.cli.kit import send_event
    from veen.overlays.wallet import wallet_stream
    from veen.state import EventSender, SentEvent, StateView

    overlay, stream = _of(asked.stream, wallet_id)

    async def work(client: "Client", name: str) -> "SentEvent":
        event = sendable(make(client.session.clock.now()))
        if asked.blind:
            said = SentEvent(await client.send(name, event.encode(), schema=event.SCHEMA))
        else:
            async with StateView.of(client, name, overlay, cached=not asked.no_cache) as view:
                said = await EventSender(view).send(event)
        if mirror is not None and said.applied:
            await _mirror(client, wallet_stream(mirror), event, said.msg_id)
        return said

    rows: dict[str, output.Value] = {"wallet_id": wallet_id, **(shown or {})}
    send_event.show_sent(send_event.run_at_hub(asked, overlay, work, stream=stream), rows, asked)


async def _mirror(client: "Client", stream_id: bytes, event: "Event", origin: bytes) -> None:
    """The same event on the receiver's stream, where this client can write to it."""
    if client.dir.stream_keys.public(stream_id) is None:
        output.remark(
            f"the receiver's stream {stream_id.hex()} has no key here: it is credited once this is sent there"
        )
        return
    sent = await client.send(stream_id, event.encode(), schema=event.SCHEMA, parent_id=origin)
    output.remark(f"the receiver's stream has it as entry {sent.stream_seq}")


faults_command.add(app, "veen wallet", _overlay)
