"""Logs with golden states: each rule of an overlay and each kind of fault at least once."""

from vectors.form import secret
from vectors.overlays.logs import START, Line, msg_id
from veen.core import cbor
from veen.core.hashing import U64_MAX
from veen.overlays.crdt import Add, Increment, Remove, Write
from veen.overlays.kv import Delete
from veen.overlays.queue import Ack, Nack, Put, TaskClaim, TaskRetry
from veen.overlays.rpc import CallRequest, Reply, RpcError, success
from veen.overlays.wallet_ledger import (
    Adjust,
    Close,
    Deposit,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    Withdraw,
    wallet_id,
)

A, B, C = (secret(f"overlay id {name}") for name in "abc")
REALM, OWNER, OTHER = (secret(f"overlay {name}") for name in ("realm", "owner", "other"))
MINE, THEIRS = wallet_id(REALM, OWNER, "JPY"), wallet_id(REALM, OTHER, "JPY")
DAY = 86_400
TODAY = START // DAY * DAY

REGISTERS = (
    Line("a first write", Write(b"door", 5, b"open")),
    Line("an older time does not win", Write(b"door", 4, b"ajar")),
    Line("of equal times the later place wins", Write(b"door", 5, b"shut")),
    Line("a mirrored copy of the first changes nothing", Write(b"door", 5, b"open"), msg_id(1), client=1),
    Line("another key, with an empty name and value", Write(b"", 0, b"")),
    Line("a body with a byte too many", Write(b"door", 9, b"gone"), body=Write(b"door", 9, b"gone").encode() + b"\0"),
    Line("a payload that does not open", Write(b"door", 9, b"gone"), sealed=True),
    Line("the greatest time there is", Write(b"door", U64_MAX, b"locked")),
)
SET = (
    Line("an element", Add(A, b"red")),
    Line("the same element under another id", Add(B, b"red")),
    Line("one of its ids is removed", Remove((A,))),
    Line("another element", Add(C, b"blue")),
    Line("a remove of an id that nobody added yet, and of one that is there", Remove((secret("overlay id d"), C))),
    Line("an add under an id that is already in a tomb", Add(secret("overlay id d"), b"green")),
    Line("a remove of nothing", Remove(())),
    Line("neither an add nor a remove", Add(A, b"red"), body=b"\xa1\x62id\x58\x20" + A),
)
COUNTER = (
    Line("a first shard", Increment(A, 3)),
    Line("a second shard", Increment(B, 4)),
    Line("a mirrored copy counts once", Increment(A, 3), msg_id(1), client=1),
    Line("a mirrored event whose original is not here", Increment(A, 3), secret("elsewhere"), client=1),
    Line("to the end of 64 bits", Increment(B, U64_MAX)),
    Line("keys in the wrong order", Increment(A, 1), body=b"\xa2\x65delta\x01\x65shard\x58\x20" + A),
)
KV_LOG = (
    Line("a put", Write(b"k", 0, b"1")),
    Line("a put of nothing is a value", Write(b"k", 0, b"")),
    Line("a deletion", Delete(b"k", 0)),
    Line("a put after a deletion", Write(b"k", 0, b"2")),
    Line("a mirrored copy of the deletion", Delete(b"k", 0), msg_id(3), client=1),
    Line("a key that was never there is deleted", Delete(b"ghost", 7)),
    Line("a put with an older time than the deletion", Write(b"ghost", 6, b"boo")),
)
QUEUE_LOG = (
    Line("a task with two tries", Put(b"print", 2)),
    Line("a task without a bound that ends", Put(b"mail"), expires_at=START + 500),
    Line("a claim", TaskClaim(msg_id(1), 60), client=1),
    Line("a claim that comes second", TaskClaim(msg_id(1), 60), client=2),
    Line("the task is given back", Nack(msg_id(1), msg_id(3), "no paper"), client=1),
    Line("the second try", TaskClaim(msg_id(1), 60), client=2),
    Line("a retry of what is no dead letter", TaskRetry(msg_id(1))),
    Line("a claim after the last try ran out", TaskClaim(msg_id(1), 60), client=1, after=60),
    Line("the dead letter is retried", TaskRetry(msg_id(1))),
    Line("the third claim", TaskClaim(msg_id(1), 5), client=1),
    Line("done, though late", Ack(msg_id(1), msg_id(10)), client=1, after=30),
    Line("done twice", Ack(msg_id(1), msg_id(10)), client=1),
    Line("a claim of what ended", TaskClaim(msg_id(2), 60), after=1000),
    Line("a claim of nothing", TaskClaim(msg_id(99), 60)),
    Line("a mirrored copy of the first put", Put(b"print", 2), msg_id(1), client=2),
)
RPC_LOG = (
    Line("a request", CallRequest("add", cbor.encode([1, 2]), 5000)),
    Line("a request with an idempotency key", CallRequest("add", cbor.encode([3, 4]), None, None, 7)),
    Line("the same request again", CallRequest("add", cbor.encode([3, 4]), None, None, 7)),
    Line("the same key of another client", CallRequest("add", cbor.encode([3, 4]), None, None, 7), client=1),
    Line("an answer", success(3), msg_id(1), client=2),
    Line("a second answer", success(4), msg_id(1), client=2),
    Line("an answer to the first of two", success(7), msg_id(2), client=2),
    Line("an answer that is null", success(None), msg_id(4), client=2),
    Line("a failure, to a request of another stream", Reply(False, None, RpcError("E.NO", "why")), secret("elsewhere")),
    Line("an answer to nothing", success(1)),
    Line("a success without a result", success(1), msg_id(3), body=b"\xa1\x62ok\xf5"),
    Line("a mirrored request", CallRequest("add", cbor.encode([5, 6]), None, B, 7), secret("over there"), client=1),
)
WALLET_LOG = (
    Line("a deposit before there is a wallet", Deposit(MINE, 1, TODAY)),
    Line("a limit before there is a wallet", Limit(MINE, 5, TODAY)),
    Line("it is opened", Open(MINE, REALM, OWNER, "JPY", TODAY - 3 * DAY)),
    Line("it is opened again", Open(MINE, REALM, OWNER, "JPY", TODAY)),
    Line("a deposit", Deposit(MINE, 1000, TODAY, b"bank 1")),
    Line("a withdrawal that no limit counts", Withdraw(MINE, 100, TODAY)),
    Line("a limit", Limit(MINE, 300, TODAY)),
    Line("a transfer out, which counts", Transfer(MINE, THEIRS, 200, TODAY, A)),
    Line("the same transfer again", Transfer(MINE, THEIRS, 200, TODAY + 1, A)),
    Line("beyond the limit of the day", Withdraw(MINE, 101, TODAY + 2)),
    Line("to the limit of the day", Withdraw(MINE, 100, TODAY + 3, b"atm 1")),
    Line("the same withdrawal again", Withdraw(MINE, 100, TODAY + 4, b"atm 1")),
    Line("the next day", Withdraw(MINE, 300, TODAY + DAY)),
    Line("the limit is cleared", Limit(MINE, None, TODAY + DAY)),
    Line("beyond the balance", Withdraw(MINE, 301, TODAY + DAY)),
    Line("a transfer in", Transfer(THEIRS, MINE, 50, TODAY + DAY, B, cbor.encode({"note": "thanks"})), client=1),
    Line("a mirrored copy of it", Transfer(THEIRS, MINE, 50, TODAY + DAY, B), msg_id(16), client=2),
    Line("a correction", Adjust(MINE, -50, TODAY + DAY, "fee")),
    Line("a correction beyond the balance", Adjust(MINE, -301, TODAY + DAY, "fee")),
    Line("it is frozen", Freeze(MINE, TODAY + DAY, "review")),
    Line("a withdrawal while it is frozen", Withdraw(MINE, 1, TODAY + DAY)),
    Line("a deposit while it is frozen", Deposit(MINE, 7, TODAY + DAY)),
    Line("it is unfrozen", Unfreeze(MINE, TODAY + DAY)),
    Line("the balance outgrows 64 bits", Deposit(MINE, U64_MAX, TODAY + DAY)),
    Line("an open that says nothing", Open(MINE, REALM, OWNER, "JPY", 0), body=b"\xa0"),
    Line("it is closed", Close(MINE, TODAY + 2 * DAY)),
    Line("a deposit once it is closed", Deposit(MINE, 1, TODAY + 2 * DAY)),
)
