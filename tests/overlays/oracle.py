"""A second implementation of the folds for the golden states, with plain dictionaries and cbor2 only."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeAlias

import cbor2

from tests.overlays.oracle_admin import ADMIN_KEYS, AdminRules
from tests.overlays.oracle_bridging import BRIDGING_KEYS, BridgingRules
from tests.overlays.oracle_directory import DIRECTORY_KEYS, DirectoryRules
from tests.overlays.oracle_identity import IDENTITY_KEYS, IdentityRules
from tests.overlays.oracle_operations import OPERATION_KEYS, OperationRules
from tests.overlays.oracle_record import RECORD_KEYS, RecordRules

Doc: TypeAlias = dict[str, Any]
DAY = 86_400

# Each schema's keys in order; `?` marks what may be left out.
KEYS: dict[str, list[str]] = {
    "crdt.lww.v1": ["key ts value"],
    "kv.delete.v1": ["key ts"],
    "crdt.orset.v1": ["id elem", "tomb"],
    "crdt.gcnt.v1": ["shard delta"],
    "queue.put.v1": ["item max_tries?"],
    "queue.claim.v1": ["task lease_sec"],
    "queue.ack.v1": ["task claim"],
    "queue.nack.v1": ["task claim reason?"],
    "queue.retry.v1": ["task"],
    "rpc.v1": ["method args timeout_ms? reply_to? idem?"],
    "rpc.res.v1": ["ok result", "ok error"],
    "wallet.open.v1": ["wallet_id realm_id ctx_id currency created_at"],
    "wallet.close.v1": ["wallet_id ts"],
    "wallet.deposit.v1": ["wallet_id amount ts ref?"],
    "wallet.withdraw.v1": ["wallet_id amount ts ref?"],
    "wallet.transfer.v1": ["wallet_id to_wallet_id amount ts transfer_id metadata?"],
    "wallet.adjust.v1": ["wallet_id delta ts reason ref?"],
    "wallet.limit.v1": ["wallet_id daily_limit? ts"],
    "wallet.freeze.v1": ["wallet_id ts reason?"],
    "wallet.unfreeze.v1": ["wallet_id ts reason?"],
    **ADMIN_KEYS,
    **BRIDGING_KEYS,
    **DIRECTORY_KEYS,
    **IDENTITY_KEYS,
    **OPERATION_KEYS,
    **RECORD_KEYS,
}
NAMES = {sha256(name.encode()).hexdigest(): name for name in KEYS}


def fits(keys: list[str], form: str) -> bool:
    wanted = form.split()
    return [name.rstrip("?") for name in wanted if not name.endswith("?") or name[:-1] in keys] == keys


class Oracle(IdentityRules, AdminRules, BridgingRules, DirectoryRules, OperationRules, RecordRules):
    """One fold. `states` maps a part to what is encoded for it."""

    def __init__(self, class_name: str) -> None:
        self.states: dict[bytes, Any] = {}
        self.seen: set[tuple[bytes, ...]] = set()
        self._take: Callable[[str, Doc, Doc], bool | None] = getattr(self, "_" + class_name.split(".")[-1])

    def add(self, entry: Doc) -> bool:
        """Apply an entry and return whether it was applied."""
        header = entry["payload_hdr"]
        if header is None:
            return False
        name, body = NAMES[header["schema"]], bytes.fromhex(entry["body"])
        try:
            event = cbor2.loads(body)
        except cbor2.CBORDecodeError:
            return False
        right = isinstance(event, dict) and any(fits(list(map(str, event)), form) for form in KEYS[name])
        if not right or cbor2.dumps(event) != body:
            return False
        return self._take(name, event, entry) is not False

    def fresh(self, *key: bytes) -> bool:
        new = key not in self.seen
        self.seen.add(key)
        return new

    def encoded(self) -> bytes:
        return cbor2.dumps([[part, self.states[part]] for part in sorted(self.states)])

    def _origin(self, entry: Doc) -> bytes:
        return bytes.fromhex(entry["payload_hdr"].get("parent_id") or entry["msg_id"])

    def _lww(self, name: str, event: Doc, entry: Doc) -> bool | None:
        if not self.fresh(event["key"], self._origin(entry)):
            return False
        was = self.states.get(event["key"])
        if was is None or (event["ts"], entry["stream_seq"]) > (was["ts"], was["stream_seq"]):
            now = {"ts": event["ts"], "epoch": 0, "stream_seq": entry["stream_seq"]}
            self.states[event["key"]] = now | ({"value": event["value"]} if "value" in event else {})
        return None

    _kv = _lww

    def _orset(self, name: str, event: Doc, entry: Doc) -> None:
        if "id" in event:
            part = b"e" + event["elem"]
            self.states[part] = sorted({*self.states.get(part, []), event["id"]})
        for one in event.get("tomb", []):
            self.states[b"i" + one] = [b""]

    def _gcnt(self, name: str, event: Doc, entry: Doc) -> bool | None:
        if not self.fresh(event["shard"], self._origin(entry)):
            return False
        before = self.states.get(event["shard"], 0)
        before = before if isinstance(before, int) else int.from_bytes(before[1], "big")
        self.states[event["shard"]] = number(before + event["delta"])
        return None

    def _queue(self, name: str, event: Doc, entry: Doc) -> bool | None:
        origin, now = self._origin(entry), entry["hub_ts"]
        task_id = origin if name == "queue.put.v1" else event["task"]
        if not self.fresh(task_id, origin):
            return False
        task = self.states.get(task_id)
        if name == "queue.put.v1":
            fields = {"tries": 0, "until": 0, "done": False, **event}
            ends = entry["payload_hdr"].get("expires_at")
            self.states[task_id] = fields | ({} if ends is None else {"expires_at": ends})
            return None
        if task is None or task["done"]:
            return False
        running = "claim" in task and now < task["until"]
        dead = not running and task["tries"] >= task.get("max_tries", task["tries"] + 1)
        if name == "queue.claim.v1":
            if running or dead or now > task.get("expires_at", now):
                return False
            change = {"tries": task["tries"] + 1, "until": now + event["lease_sec"], "claim": origin}
        elif name == "queue.retry.v1":
            if not dead:
                return False
            change = {"tries": 0, "until": 0, "claim": None}
        elif event["claim"] != task.get("claim"):
            return False
        else:
            given_back = {"until": 0, "claim": None, "reason": event.get("reason")}
            change = {"done": True} if name == "queue.ack.v1" else given_back
        order = ("tries", "until", "done", "item", "max_tries", "expires_at", "claim", "reason")
        merged = {**task, **change}
        self.states[task_id] = {key: merged[key] for key in order if merged.get(key) is not None}
        return None

    def _rpc(self, name: str, event: Doc, entry: Doc) -> bool | None:
        parent, client = entry["payload_hdr"].get("parent_id"), bytes.fromhex(entry["client_id"])
        place = {"epoch": 0, "stream_seq": entry["stream_seq"], "client_id": client}
        call_id = self._origin(entry)
        call = self.states.get(b"c" + call_id, {})
        if name == "rpc.res.v1":
            if parent is None or "answered" in call:
                return False
            self.states[b"c" + call_id] = {**call, "answered": {**place, "hub_ts": entry["hub_ts"], "reply": event}}
            return None
        asked = {**place, "mirrored": parent is not None, "request": event}
        if "timeout_ms" in event:
            asked["deadline_ms"] = 1000 * entry["hub_ts"] + event["timeout_ms"]
        self.states[b"c" + call_id] = {"asked": asked, **call}
        if "idem" in event and parent is None:
            key = b"k" + client + event["idem"].to_bytes(8, "big") + event["method"].encode()
            self.states.setdefault(key, {"first_call": call_id})
        return None

    def _ledger(self, name: str, event: Doc, entry: Doc) -> bool | None:
        """The only wallet of the file is the one that is opened in it."""
        wallet = WALLET if WALLET in (event["wallet_id"], event.get("to_wallet_id")) else b""
        out = event["wallet_id"] == wallet
        keys = [(b"origin", self._origin(entry))]
        if "transfer_id" in event:
            keys.append((b"out" if out else b"in", event["transfer_id"]))
        if name == "wallet.withdraw.v1" and "ref" in event:
            keys.append((b"ref", event["ref"]))
        met = [self.fresh(*key) for key in keys]  # each of them, also after one that was met before
        if not all(met):
            return False
        was = self.states.get(wallet) or EMPTY_WALLET
        now = _wallet_after(name, {**was, "balance": _whole(was["balance"])}, event, out)
        if now is None:
            return False
        order = list(EMPTY_WALLET)
        shown = {**now, "balance": number(now["balance"])}
        self.states[wallet] = {key: shown[key] for key in order if shown[key] is not None}
        return None


WALLET = sha256(
    b"wallet/id\0" + b"".join(sha256(b"veen vectors/overlay " + one).digest() for one in (b"realm", b"owner")) + b"JPY"
).digest()
EMPTY_WALLET: Doc = {
    "exists": False,
    "closed": False,
    "balance": 0,
    "frozen": False,
    "daily_limit": None,
    "pending_daily_spent": 0,
    "last_limit_reset_ts": 0,
}


def number(value: int) -> Any:
    return value if value < 1 << 64 else [False, value.to_bytes((value.bit_length() + 7) // 8, "big")]


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else int.from_bytes(value[1], "big")


def _wallet_after(name: str, was: Doc, event: Doc, out: bool) -> Doc | None:
    """The wallet after an event; None where it refuses it."""
    verb = name.split(".")[1]
    limit, reset = was.get("daily_limit"), was["last_limit_reset_ts"]
    was = {**was, "daily_limit": limit}
    if verb == "limit":
        new = event.get("daily_limit")
        return {**was, "daily_limit": new, "last_limit_reset_ts": reset or (event["ts"] if new is not None else 0)}
    if verb == "open":
        opened = {**EMPTY_WALLET, "exists": True, "last_limit_reset_ts": event["created_at"]}
        return None if was["exists"] else opened
    if not was["exists"]:
        return None
    if verb in ("close", "freeze", "unfreeze"):
        return {**was, **{"close": {"closed": True}, "freeze": {"frozen": True}}.get(verb, {"frozen": False})}
    if was["closed"]:
        return None
    debit = verb == "withdraw" or (verb == "transfer" and out)
    delta = event["delta"] if verb == "adjust" else -event["amount"] if debit else event["amount"]
    change: Doc = {"balance": was["balance"] + delta}
    if debit and was["frozen"]:
        return None
    if debit and limit is not None:
        same = event["ts"] // DAY == reset // DAY
        spent = (was["pending_daily_spent"] if same else 0) + event["amount"]
        if spent > limit:
            return None
        change |= {"pending_daily_spent": spent, "last_limit_reset_ts": reset if same else event["ts"]}
    return None if change["balance"] < 0 else {**was, **change}
