"""Hostile parties: hubs that fork, roll back and lie, clients that break every rule, thieves of the signing key.

Each script plays one of them against honest clients, and checks what `docs/threat-model.md` promises: evidence that
anyone can verify offline, or a refusal, and service for everybody else.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import httpx

from lab.promises import Letter, Violation, check_same
from lab.stage import HOST, PORT, STREAM, TOKEN, HubPlace, Party, Script, Stage, refused
from lab.witnesses import WitnessPlace
from plumbing.durable import Disk
from plumbing.http import HttpServer
from plumbing.http.message import Request, Respond, Response
from veen.client import evidence
from veen.client.client import Client
from veen.client.contradiction import Contradiction, Lie
from veen.client.transport import CBOR
from veen.core import (
    Checkpoint,
    DhKey,
    Limits,
    Malformed,
    Msg,
    PayloadHdr,
    Place,
    Receipt,
    Refused,
    SigningKey,
    Unavailable,
    Unverified,
    ciphertext,
    control_stream,
    msg,
    naming,
)
from veen.core.cbor import DeferredFaults, Wire
from veen.core.envelopes import (
    CheckpointOrder,
    CheckpointResponse,
    ClockAcceptance,
    ErrorEnvelope,
    ProofAtResponse,
    ReceiptCheck,
    StreamItem,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.root_key import RootSecret
from veen.hub.cosigner import RolledBack
from veen.storage import metadata, recovery, rotation
from veen.storage.directory_reader import read_entries
from veen.storage.index import Index
from veen.storage.paths import Folders

# Evidence.


def check_proven(stage: Stage, found: BaseException) -> None:
    """A contradiction must come with a file that proves it to anyone who knows the hub's id."""
    if not isinstance(found, Contradiction):
        raise Violation(f"the hub is refused with {type(found).__name__}, not as a contradiction: {found}")
    stage.expect(found.evidence is not None, f"no evidence was kept of: {found}")
    assert found.evidence is not None
    stage.expect(found.evidence.exists(), f"the evidence file is missing of: {found}")
    report = evidence.verify(found.evidence.read_bytes(), stage.hub_id)
    stage.expect(bool(report.contradictions), f"the evidence proves nothing of: {found}")


def check_caught(stage: Stage, party: Party) -> None:
    """The client refuses a hub that it caught, in every later run."""
    with refused(stage, f"{party.name} connects to the hub that it caught", Contradiction):
        party.read()


# A hub that forks.


def fork(stage: Stage) -> None:
    """Two copies of one hub accept different messages. Clients compare what the copies signed."""
    hub, ann, ben = _begin(stage)
    ann.read()
    ben.read()
    hub.stop()
    twin = stage.hub("twin", PORT + 1)
    hub.copy_to(twin)
    hub.start()
    twin.start()
    ben.port = twin.port
    common = len(stage.ledger.receipts)
    mine, theirs = stage.rng.randrange(1, 5), stage.rng.randrange(1, 5)
    before = dict(stage.ledger.receipts)
    ann.send(mine)
    of_ann, stage.ledger.receipts = stage.ledger.receipts, before
    ben.send(theirs)
    stage.ledger.receipts = of_ann
    at = common + stage.rng.randrange(1, min(mine, theirs) + 1)
    shown = _statement(stage, ann, at)

    async def compare(client: Client) -> None:
        await client.session.verify([shown])
        await client.follower(STREAM).check(shown)

    with refused(stage, "ben compares with ann", Contradiction) as found:
        ben.do(compare)
    check_proven(stage, found[0])
    check_caught(stage, ben)
    ann.send(1)  # who has not seen the other history is served


def _statement(stage: Stage, party: Party, at: int) -> Receipt | Checkpoint:
    if stage.rng.random() < 0.5:
        return party.do(lambda client: client.receipt(STREAM, at))
    return party.do(lambda client: client.checkpoint(STREAM, at))


# A hub that returns to an older copy of itself.


def rollback(stage: Stage) -> None:
    """The directory is replaced by an older copy. Holders of later receipts notice."""
    hub, ann, ben = _begin(stage)
    ben.read()
    hub.stop()
    backup = stage.hub("backup")
    hub.copy_to(backup)
    kept = len(stage.ledger.receipts)
    hub.start()
    ann.send(stage.rng.randrange(1, 5))
    hub.stop()
    backup.copy_to(hub)
    hub.start()
    if stage.rng.random() < 0.5:
        _rolled_back_and_goes_on(stage, ann, ben, kept)
    else:
        _rolled_back_and_noticed(stage, hub, ann, ben, kept)


def _rolled_back_and_goes_on(stage: Stage, ann: Party, ben: Party, kept: int) -> None:
    """Other entries take the places: two receipts for one place are evidence."""
    stage.ledger.receipts = {place: one for place, one in stage.ledger.receipts.items() if place[1] <= kept}
    ben.send(stage.rng.randrange(1, 5))
    with refused(stage, "ann reads the other history", Contradiction) as found:
        ann.read()
    check_proven(stage, found[0])
    check_caught(stage, ann)


def _rolled_back_and_noticed(stage: Stage, hub: HubPlace, ann: Party, ben: Party, kept: int) -> None:
    """A client shows its receipt first: the hub accepts nothing more on the label, until it is recovered."""
    with refused(stage, "ann reads the shorter log", Contradiction) as found:
        ann.read()
    error = found[0]
    stage.expect(
        isinstance(error, Contradiction) and error.lie is Lie.TRUNCATED_STREAM, f"a rollback is reported as {error}"
    )
    with refused(stage, "ben writes on a label with lost entries", Unavailable, Refused):
        ben.do(lambda client: client.send(STREAM, b"not accepted"))
    stage.expect(len(_places(stage, ben)) == kept, "the hub signed an entry for a place that it had signed before")
    hub.stop()
    recover(stage, hub)
    hub.start()
    _check_recovery(stage, ann, ben, kept)


def recover(stage: Stage, hub: HubPlace) -> None:
    """The operator recovers the directory of a stopped hub."""
    now = int(stage.world.wall())
    stage.alone(lambda: recovery.recover(Disk(), hub.data_dir, now, stage.root, isolated=False))
    stage.note("recovered")


def _check_recovery(stage: Stage, ann: Party, ben: Party, kept: int) -> None:
    """Who holds lost receipts refuses the hub until it accepts the loss; others are served."""
    lost = [one for place, one in stage.ledger.receipts.items() if place[1] > kept]
    stage.ledger.receipts = {place: one for place, one in stage.ledger.receipts.items() if place[1] <= kept}
    stage.ledger.places = {leaf: place for leaf, place in stage.ledger.places.items() if place[1] <= kept}
    ben.do(lambda client: client.recover())
    with refused(stage, "ann reads the recovered log", Contradiction) as found:
        ann.read()
    error = found[0]
    stage.expect(isinstance(error, Contradiction) and error.lie is Lie.RECOVERY, f"a recovery is reported as {error}")
    assert isinstance(error, Contradiction)
    stage.expect(error.evidence is not None, "the receipts of lost entries were not kept")
    assert error.evidence is not None
    report = evidence.verify(error.evidence.read_bytes(), stage.hub_id)
    places = {one.stream_seq for one in report.lost}
    stage.expect({one.stream_seq for one in lost} <= places, f"the evidence shows the loss of {sorted(places)} only")
    ann.do(lambda client: client.accept_recovery(STREAM))
    _places(stage, ann)


def _places(stage: Stage, party: Party) -> list[int]:
    async def places(client: Client) -> list[int]:
        return [entry.stream_seq async for entry in client.read(STREAM)]

    return party.do(places)


# The same with witnesses.


def witnessed(stage: Stage) -> None:
    """A hub with witnesses returns to an older copy of itself, or continues as two copies. The witnesses notice."""
    witnesses = [WitnessPlace(stage, number) for number in range(stage.rng.choice((1, 3)))]
    for one in witnesses:
        one.start()
    asked = tuple(one.address for one in witnesses)
    hub, ann, ben = _begin(stage, witness_addresses=asked)
    ben.read()
    if stage.rng.random() < 0.5:
        _witnessed_rollback(stage, hub, ann, ben, witnesses)
    else:
        _witnessed_fork(stage, hub, ann, ben, witnesses)


def _witnessed_rollback(stage: Stage, hub: HubPlace, ann: Party, ben: Party, witnesses: list[WitnessPlace]) -> None:
    """The hub does not start on the older copy. After a recovery the witnesses cosign again."""
    hub.stop()
    backup = stage.hub("backup")
    hub.copy_to(backup)
    kept = len(stage.ledger.receipts)
    hub.start()
    ann.send(stage.rng.randrange(1, 5))
    _cosigned(stage, hub, len(witnesses))
    hub.stop()
    backup.copy_to(hub)
    if len(witnesses) == 3 and stage.rng.random() < 0.5:
        witnesses[stage.rng.randrange(3)].kill()
    with refused(stage, "the hub starts on an older copy", RolledBack):
        hub.start()
    recover(stage, hub)
    for one in witnesses:
        if not one.is_running:
            one.start()
    hub.start()
    _check_recovery(stage, ann, ben, kept)
    ben.send(1)
    _cosigned(stage, hub, len(witnesses))


def _witnessed_fork(stage: Stage, hub: HubPlace, ann: Party, ben: Party, witnesses: list[WitnessPlace]) -> None:
    """Two copies go on with different messages. The witnesses cosign one history only."""
    _cosigned(stage, hub, len(witnesses))
    hub.stop()
    twin = stage.hub("twin", PORT + 1, witness_addresses=tuple(one.address for one in witnesses))
    hub.copy_to(twin)
    hub.start()
    twin.start()
    ben.port = twin.port
    before = dict(stage.ledger.receipts)
    ann.send(stage.rng.randrange(1, 5))
    of_ann, stage.ledger.receipts = stage.ledger.receipts, before
    ben.send(stage.rng.randrange(1, 5))
    stage.ledger.receipts = of_ann
    _cosigned(stage, hub, len(witnesses))
    _cosigned(stage, twin, 0)
    twin.stop()
    with refused(stage, "the other copy starts again", RolledBack):
        twin.start()
    ann.send(1)
    _cosigned(stage, hub, len(witnesses))


def _cosigned(stage: Stage, hub: HubPlace, expected: int) -> None:
    """The operator orders a checkpoint of the stream, which so many witnesses cosign."""
    label = next(iter(stage.ledger.receipts))[0]
    answer = stage.finish_one(
        stage.world.process("operator").spawn(_answer("/tooling/checkpoint", CheckpointOrder(label), hub.port))
    )
    made = CheckpointResponse.decode(answer).checkpoint
    found = len(made.witness_sigs or ())
    stage.note(f"{hub.name}: the checkpoint of {made.upto_seq} entries is cosigned by {found}")
    stage.expect(found == expected, f"{found} witnesses cosigned a checkpoint of {hub.name}, not {expected}")


# A hub that lies to one client.


@dataclass(frozen=True, slots=True)
class Deceit:
    """A lie: how the answers to one client change, what the client does, and whether it can prove the lie."""

    paths: tuple[str, ...]
    change: Callable[["Liar", bytes], bytes]
    act: str  # "send", "read", "checkpoint", "prove"
    proven: bool


class Liar:
    """The app of a second port of the same hub. It changes answers, and signs them with the hub's key."""

    def __init__(self, stage: Stage, hub: HubPlace, deceit: Deceit) -> None:
        self.rng = Random(f"liar {stage.world.seed}")
        folders = Folders(hub.data_dir)
        self.key = metadata.read_signing_key(folders, metadata.read_metadata(folders).identity.newest.key_id)
        assert hub.service is not None
        self.honest = hub.service.app
        self.deceit = deceit
        self.lies = False
        self.told = 0

    def body_limit(self, method: str, path: str) -> int | None:
        return self.honest.body_limit(method, path)

    def too_large(self, head: Request) -> Response:
        return self.honest.too_large(head)

    def refused(self, status: int, reason: str, head: Request) -> Response:
        return self.honest.refused(status, reason, head)

    def upload(self, head: Request) -> Any:
        return self.honest.upload(head)

    def shortcut(self, head: Request) -> None:
        return None

    def websocket(self, head: Request) -> Any:
        return self.honest.websocket(head)

    def handle(self, request: Request, respond: Respond) -> None:
        def changed(response: Response) -> None:
            if self.lies and request.path in self.deceit.paths and response.status == 200:
                try:
                    body = self.deceit.change(self, bytes(response.body))
                except _TooShort:
                    pass
                else:
                    self.told += 1
                    response = Response(200, body, response.content_type)
            respond(response)

        self.honest.handle(request, changed)

    def signed(self, head: Any, **changes: Any) -> Any:
        """A receipt or a checkpoint with changed fields, signed by the hub."""
        unsigned = replace(head, **changes)
        return replace(unsigned, hub_sig=self.key.sign(unsigned.signing_digest()))


class _TooShort(Exception):
    """The answer has too little to lie about."""


def _receipts(change: Callable[[Liar, Receipt], Receipt]) -> Callable[[Liar, bytes], bytes]:
    """Change the receipt, or the first one of a batch."""

    def changed(liar: Liar, body: bytes) -> bytes:
        with suppress(Malformed):
            return SubmitResponse(change(liar, SubmitResponse.decode(body).receipt)).encode()
        try:
            receipt, end = Receipt.read(body, 0, DeferredFaults())
        except Malformed:
            raise _TooShort from None
        return change(liar, receipt).encode() + body[end:]

    return changed


def _items(change: Callable[[Liar, list[StreamItem]], list[StreamItem]]) -> Callable[[Liar, bytes], bytes]:
    def changed(liar: Liar, body: bytes) -> bytes:
        page = StreamResponse.decode(body)
        items = list(page.items)
        if len(items) < 3:
            raise _TooShort
        return replace(page, items=tuple(change(liar, items))).encode()

    return changed


def _without_one(liar: Liar, items: list[StreamItem]) -> list[StreamItem]:
    del items[liar.rng.randrange(1, len(items) - 1)]
    return items


def _swapped(liar: Liar, items: list[StreamItem]) -> list[StreamItem]:
    at = liar.rng.randrange(len(items) - 1)
    items[at : at + 2] = items[at + 1], items[at]
    return items


def _renumbered(liar: Liar, items: list[StreamItem]) -> list[StreamItem]:
    """One entry is left out, and the later ones get the numbers before theirs."""
    at = liar.rng.randrange(1, len(items) - 1)
    return [
        *items[:at],
        *(StreamItem(one.stream_seq - 1, one.msg, one.receipt) for one in items[at + 1 :]),
    ]


def _other_message(liar: Liar, items: list[StreamItem]) -> list[StreamItem]:
    at = liar.rng.randrange(len(items) - 1)
    items[at] = StreamItem(items[at].stream_seq, items[at + 1].msg, items[at].receipt)
    return items


def _checkpoint(change: Callable[[Liar, Checkpoint], Checkpoint]) -> Callable[[Liar, bytes], bytes]:
    return lambda liar, body: CheckpointResponse(change(liar, CheckpointResponse.decode(body).checkpoint)).encode()


def _proof(liar: Liar, body: bytes) -> bytes:
    shown = ProofAtResponse.decode(body).mmr_proof
    if not shown.peaks_after:
        raise _TooShort
    return ProofAtResponse(replace(shown, peaks_after=(bytes(32), *shown.peaks_after[1:]))).encode()


_ROOT = bytes(32)
_SUBMIT = ("/v1/submit", "/tooling/submit-batch")
DECEITS = {
    "a receipt with a wrong root": Deceit(
        _SUBMIT, _receipts(lambda liar, one: liar.signed(one, mmr_root=_ROOT)), "send", True
    ),
    "a receipt for a taken place": Deceit(
        _SUBMIT, _receipts(lambda liar, one: liar.signed(one, stream_seq=1)), "send", True
    ),
    "a receipt with an earlier time": Deceit(
        _SUBMIT, _receipts(lambda liar, one: liar.signed(one, hub_ts=one.hub_ts - 9999)), "send", True
    ),
    "a receipt that nobody signed": Deceit(
        _SUBMIT, _receipts(lambda liar, one: replace(one, hub_sig=bytes(64))), "send", False
    ),
    "an entry withheld": Deceit(("/v1/stream",), _items(_without_one), "read", False),
    "two entries swapped": Deceit(("/v1/stream",), _items(_swapped), "read", False),
    "an entry withheld, others renumbered": Deceit(("/v1/stream",), _items(_renumbered), "read", False),
    "another message in an entry": Deceit(("/v1/stream",), _items(_other_message), "read", False),
    "the end withheld": Deceit(("/v1/stream",), _items(lambda liar, items: items[:2]), "read", False),
    "a checkpoint with a wrong root": Deceit(
        ("/v1/checkpoint",), _checkpoint(lambda liar, one: liar.signed(one, mmr_root=_ROOT)), "checkpoint", True
    ),
    "an older checkpoint": Deceit(
        ("/v1/checkpoint",),
        _checkpoint(lambda liar, one: liar.signed(one, upto_seq=max(1, one.upto_seq - 1))),
        "checkpoint",
        False,
    ),
    "a wrong proof": Deceit(("/tooling/proof",), _proof, "prove", False),
}


def deceit(stage: Stage) -> None:
    """The hub lies to one client, once. It is refused; the others are served and notice nothing."""
    hub, ann, ben = _begin(stage)
    ann.send(3)
    ann.read()
    name = stage.rng.choice(sorted(DECEITS))
    told = DECEITS[name]
    stage.note(name)
    liar = Liar(stage, hub, told)
    server = HttpServer(lambda what, error: stage.note(f"liar: {error!r}"))
    stage.finish(hub.spawn(server.start(liar, HOST, PORT + 1)))
    ann.port = PORT + 1
    liar.lies = True
    other = ben.task(lambda client: ben.sending(client, stage.rng.randrange(1, 4)))
    with refused(stage, f"ann meets {name}", Contradiction, Unverified, Malformed, Unavailable) as found:
        _meet(stage, ann, told, liar)
    stage.finish(other)
    other.result()
    if told.proven and liar.told:
        check_proven(stage, found[0])
        liar.lies = False
        check_caught(stage, ann)
    stage.finish(hub.spawn(server.stop(0)))
    ben.send(1)
    ben.read()
    hub.stop()
    stage.check_clean(hub)


def _meet(stage: Stage, ann: Party, told: Deceit, liar: Liar) -> None:
    """Do what meets the lie. If the hub had nothing to lie about, nothing is refused."""
    if told.act == "send":
        body = b"answered with a lie"
        stage.ledger.letters[body] = Letter(STREAM, body, body)  # the hub has it, and ann does not accept its receipt
        ann.do(lambda client: client.send(STREAM, body))
    elif told.act == "read":
        log = ann.do(ann.reading).entries
        sent = max(one.stream_seq for one in stage.ledger.receipts.values())
        stage.expect(len(log) >= sent - 3 or liar.told == 0, f"ann accepts {len(log)} of {sent} entries")
    elif told.act == "checkpoint":
        ann.do(lambda client: client.checkpoint(STREAM))
    else:

        async def prove(client: Client) -> None:
            end = client.follower(STREAM).tree.size
            await client.proof(STREAM, 1, end)

        ann.do(prove)
    if liar.told == 0:
        raise Unavailable("there was nothing to lie about")


# A client that breaks the rules.


def bad_client(stage: Stage) -> None:
    """A client floods, sends garbage, replays, skips numbers and lies about what it has seen."""
    in_flight = stage.rng.choice((4, 16, 1024))
    hub, ann, ben = _begin(stage, max_in_flight=in_flight)
    log = ann.read().entries
    stranger = Stranger(stage, [entry.msg for entry in log], [entry.receipt for entry in log])
    attack = stage.world.process("stranger").spawn(stranger.attack())
    honest = [party.task(lambda client, party=party: party.sending(client, 3)) for party in (ann, ben)]  # type: ignore[misc]
    stage.finish(attack, *honest)
    attack.result()
    for task in honest:
        task.result()
    logs = {party.name: party.read() for party in (ann, ben)}
    check_same(logs)
    stage.ledger.check_complete({log[0].receipt.label: logs["ann"]})
    hub.stop()
    stage.expect(hub.ended is None, f"the hub ended: {hub.ended}")
    stage.check_clean(hub)


class Stranger:
    """A client that the hub must not believe."""

    def __init__(self, stage: Stage, seen: list[Msg], receipts: list[Receipt]) -> None:
        self.stage = stage
        self.rng = Random(f"stranger {stage.world.seed}")
        self.seen = seen
        self.receipts = receipts
        self.keys = [SigningKey(self.rng.randbytes(32)) for _ in range(6)]
        self.accepted: dict[bytes, int] = {}

    async def attack(self) -> None:
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{PORT}", trust_env=False, verify=False) as http:
            self.http = http
            acts = [
                self.flood,
                self.garbage,
                self.replay,
                self.skip,
                self.lie_about_ack,
                self.forge,
                self.lie_about_receipts,
                self.mixed_batch,
            ]
            self.rng.shuffle(acts)
            for act in acts:
                await act()

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        answer = await self.http.post(path, content=body, headers={"content-type": CBOR}, timeout=60.0)
        return answer.status_code, answer.content

    async def submit(self, message: Msg) -> Receipt | Refused:
        status, body = await self.post("/v1/submit", SubmitRequest(message).encode())
        return SubmitResponse.decode(body).receipt if status == 200 else ErrorEnvelope.decode(body).refused()

    def message(self, key: SigningKey, client_seq: int, prev_ack: int = 0, *, own: bool = True) -> Msg:
        """A message on a label of the stranger, or on that of the honest clients."""
        label = self.rng.randbytes(32) if own else self.seen[0].label
        label = naming.stream_id("stranger") if own else label
        place = Place(self.stage.profile.profile_id(), label, key.public_key, client_seq, prev_ack)
        sealed = ciphertext.seal(
            DhKey.generate().public_key, place, PayloadHdr(bytes(32)), b"noise", self.stage.profile.pad_block
        )
        return msg.sign(
            key,
            profile_id=place.profile_id,
            label=label,
            client_seq=client_seq,
            prev_ack=prev_ack,
            auth_ref=None,
            ciphertext=sealed,
        )

    async def flood(self) -> None:
        """Many messages at once. Each gets a place, or is told to come back later."""
        sent = [self.message(key, self.accepted.get(key.public_key, 0) + 1) for key in self.keys for _ in range(5)]
        for outcome in await asyncio.gather(*map(self.submit, sent)):
            if isinstance(outcome, Refused):
                ok = outcome.code in ("E.UNAVAILABLE", "E.SEQ", "E.RATE")
                self.stage.expect(ok, f"a message of a flood is rejected with {outcome}")
        for key in self.keys:
            self.accepted[key.public_key] = 1

    async def garbage(self) -> None:
        whole = SubmitRequest(self.seen[0]).encode()
        for _ in range(8):
            body = bytearray(whole)
            kind = self.rng.randrange(4)
            if kind == 0:
                body = bytearray(self.rng.randbytes(self.rng.randrange(200)))
            elif kind == 1:
                del body[self.rng.randrange(len(body)) :]
            elif kind == 2:
                body += self.rng.randbytes(3)
            else:
                body[self.rng.randrange(len(body))] ^= 1 << self.rng.randrange(8)
            path = self.rng.choice(("/v1/submit", "/tooling/submit-batch", "/v1/stream", "/tooling/receipt-check"))
            status, answer = await self.post(path, bytes(body))
            is_refused = 400 <= status < 500 or (path == "/tooling/submit-batch" and status == 200)
            self.stage.expect(is_refused, f"garbage at {path} is answered with {status}")
            if status == 200:
                self._check_no_receipt(answer)

    def _check_no_receipt(self, answer: bytes) -> None:
        with_receipt = False
        try:
            Receipt.read(answer, 0, DeferredFaults())
            with_receipt = True
        except Malformed:
            pass
        self.stage.expect(not with_receipt, "garbage got a receipt")

    async def replay(self) -> None:
        """Send what others sent before. It is a duplicate, at the place that it has."""
        for known in self.rng.sample(self.seen, min(3, len(self.seen))):
            outcome = await self.submit(known)
            self._expect(outcome, "DUPLICATE", "a replayed message")

    async def skip(self) -> None:
        key = SigningKey(self.rng.randbytes(32))
        skipped = self.message(key, self.rng.randrange(2, 9), own=self.rng.random() < 0.5)
        self._expect(await self.submit(skipped), "CLIENT_SEQ", "a message with a skipped client_seq")

    async def lie_about_ack(self) -> None:
        """Acknowledge an entry that the hub never signed."""
        ahead = self.message(SigningKey(self.rng.randbytes(32)), 1, 10_000, own=False)
        self._expect(await self.submit(ahead), "PREV_ACK", "a message that acknowledges a future entry")

    async def forge(self) -> None:
        """Write in the name of another client."""
        victim = self.rng.choice(self.seen)
        forged = replace(self.message(self.keys[0], 99, own=False), client_id=victim.client_id)
        self._expect(await self.submit(forged), "SIG_INVALID", "a message in the name of another client")

    async def mixed_batch(self) -> None:
        """Valid and forged messages in one batch: each gets its own answer."""
        key, forger = SigningKey(self.rng.randbytes(32)), SigningKey(self.rng.randbytes(32))
        count = self.rng.randrange(2, 9)
        is_forged = [self.rng.random() < 0.5 for _ in range(count)]
        sent, number = [], 0
        for bad in is_forged:
            number += not bad
            made = self.message(forger if bad else key, number if not bad else 1)
            sent.append(replace(made, client_id=self.seen[0].client_id) if bad else made)
        status, answer = await self.post("/tooling/submit-batch", b"".join(one.encode() for one in sent))
        self.stage.expect(status in (200, 503), f"a batch is answered with {status}")
        pos = 0
        for bad, one in zip(is_forged, sent, strict=True) if status == 200 else ():
            try:
                receipt, pos = Receipt.read(answer, pos, DeferredFaults())
                self.stage.expect(not bad, "a forged message got a receipt")
                self.stage.expect(receipt.leaf_hash == one.leaf_hash(), "a message got the receipt of another")
            except Malformed:
                envelope, pos = ErrorEnvelope.read(answer, pos, DeferredFaults())
                fine = bad or envelope.refused().code in ("E.UNAVAILABLE", "E.SEQ")
                self.stage.expect(fine, f"a valid message is rejected with {envelope.refused()}")

    async def lie_about_receipts(self) -> None:
        """Show receipts that the hub did not sign, to make it stop a label."""
        real = self.rng.choice(self.receipts)
        invented = replace(real, stream_seq=real.stream_seq + 1000, hub_sig=self.rng.randbytes(64))
        status, _ = await self.post("/tooling/receipt-check", invented.encode())
        self.stage.expect(status == 403, f"an invented receipt is answered with {status}")
        status, body = await self.post("/tooling/receipt-check", real.encode())
        fine = status == 200 and ReceiptCheck.decode(body).is_known
        self.stage.expect(fine, f"a real receipt is not recognized: {status}")

    def _expect(self, outcome: Receipt | Refused, detail: str, what: str) -> None:
        if isinstance(outcome, Receipt):
            raise Violation(f"{what} got a receipt")
        fine = outcome.detail_enum == detail or outcome.code == "E.UNAVAILABLE"
        self.stage.expect(fine, f"{what} is rejected with {outcome}, not with {detail}")


# A thief of the signing key.


def thief(stage: Stage) -> None:
    """A thief has a copy of the directory, with the signing key, and rotates. The owner rotates too."""
    with_root = stage.rng.random() < 0.5
    hub, ann, ben = _begin(stage, with_root=with_root)
    ben.read()
    hub.stop()
    stolen = stage.hub("stolen", PORT + 1)
    hub.copy_to(stolen)
    if with_root:
        with refused(stage, "the thief rotates without the root", Unavailable, Unverified):
            assert stage.root is not None
            rotate(stage, stolen, replace(stage.root, seed=stage.rng.randbytes(32)))
        hub.start()
        ann.send(1)
        return
    rotate(stage, stolen)
    rotate(stage, hub)
    hub.start()
    stolen.start()
    before = dict(stage.ledger.receipts)
    ann.send(1)
    of_ann, stage.ledger.receipts = stage.ledger.receipts, before
    ben.port = stolen.port
    ben.send(1)
    stage.ledger.receipts = of_ann
    ben.port = PORT
    with refused(stage, "ben sees both histories of the keys", Contradiction) as found:
        ben.read()
    check_proven(stage, found[0])
    check_caught(stage, ben)
    ann.send(1)


def rotate(stage: Stage, hub: HubPlace, root: RootSecret | None = None) -> None:
    """Rotate the key of a stopped hub, with its root key or with that of somebody else."""
    folders, now = Folders(hub.data_dir), int(stage.world.wall())
    secret = root or stage.root

    def run() -> None:
        endorsement = rotation.request_rotation(Disk(), folders, now).endorse(secret) if secret else None
        rotation.rotate_key(Disk(), folders, now + 1, 0, endorsement)

    stage.alone(run)
    stage.note(f"{hub.name}: the key is rotated")


# What limits a thief: hand-overs between keys, and the hub's time.


def hand_over(stage: Stage) -> None:
    """After a rotation, every signature of the old key is covered, and the hand-over is on the control stream."""
    hub, ann, ben = _begin(stage)
    old = list(stage.ledger.receipts.values())
    hub.stop()
    rotate(stage, hub)
    hub.start()
    ben.send(1)

    async def covers(client: Client) -> list[Any]:
        return [await client.session.cover(receipt) for receipt in old]

    for receipt, cover in zip(old, ann.do(covers), strict=True):
        stage.expect(cover is not None, f"the old key's receipt of entry {receipt.stream_seq} is not covered")
    hub.stop()
    folders = Folders(hub.data_dir)
    made = rotation.read_handovers(folders, metadata.read_metadata(folders).identity)
    logged = stage.alone(lambda: control_events(hub))
    stage.expect(bool(made), "there is no hand-over")
    for one in made:
        stage.expect(one in logged, "a hand-over is not on the control stream")
    stage.check_clean(hub)


def control_events(hub: HubPlace) -> list[control_stream.Event]:
    """The events on the control stream of a stopped hub. Its log has all of them."""
    folders = Folders(hub.data_dir)
    identity = metadata.read_metadata(folders).identity
    label = naming.label(identity.routing_key, naming.control_stream(identity.hub_id), 0)
    index = Index(folders.index, readonly=True)
    try:
        with index.read() as rows:
            head = rows.head(label)
        size = head.size if head else 0
        messages = [Msg.decode(entry.msg) for entry in read_entries(folders, index, label, 1, size)]
    finally:
        index.close()
    return [control_stream.event_of(identity.hub_id, message, Limits()) for message in messages]


def clock(stage: Stage) -> None:
    """The clock of the hub's machine jumps. The hub follows it when its operator accepts it, and not further."""
    hub, ann, ben = _begin(stage)
    step = stage.rng.choice((-7200.0, 90.0, 4000.0, 100_000.0))
    before = max(one.hub_ts for one in stage.ledger.receipts.values())
    hub.step_clock(step)
    ann.send(1)
    latest = max(one.hub_ts for one in stage.ledger.receipts.values())
    stage.expect(latest - before < 60, f"hub_ts jumps by {latest - before} s with the clock")
    wall = int(stage.world.wall() + step)
    answer = stage.finish_one(stage.world.process("operator").spawn(_post("/tooling/clock", ClockAcceptance(wall))))
    stage.expect(answer == 200, f"the operator's acceptance is answered with {answer}")
    ben.send(2)
    after = max(one.hub_ts for one in stage.ledger.receipts.values())
    wall = int(stage.world.wall() + step)
    stage.expect(after <= max(wall, latest + 60), f"hub_ts is {after - wall} s ahead of the clock that was accepted")
    stage.expect(step < 0 or after >= wall - 60, f"hub_ts is {wall - after} s behind the clock that was accepted")
    hub.stop()


async def _post(path: str, request: Wire) -> int:
    return (await _asked(path, request, PORT)).status_code


async def _answer(path: str, request: Wire, port: int) -> bytes:
    return (await _asked(path, request, port)).content


async def _asked(path: str, request: Wire, port: int) -> httpx.Response:
    """Send a request with the operator's token."""
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": CBOR}
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", trust_env=False, verify=False) as http:
        return await http.post(path, content=request.encode(), headers=headers, timeout=600.0)


def _begin(stage: Stage, *, with_root: bool | None = None, **config: Any) -> tuple[HubPlace, Party, Party]:
    """A hub with some messages of two clients."""
    root = stage.rng.random() < 0.5 if with_root is None else with_root
    hub = stage.create_hub(with_root=root, **config)
    hub.start()
    ann, ben = stage.party("ann"), stage.party("ben")
    ann.send(stage.rng.randrange(1, 9))
    ben.send(stage.rng.randrange(1, 5))
    return hub, ann, ben


SCRIPTS: dict[str, Script] = {
    "bad client": bad_client,
    "clock": clock,
    "deceit": deceit,
    "fork": fork,
    "hand-over": hand_over,
    "rollback": rollback,
    "thief": thief,
    "witnessed": witnessed,
}
