"""The client of one hub. It sends and reads, and verifies everything that the hub returns.

async with Client("https://hub.example", folder, pin=Pin.parse(text)) as client:
    sent = await client.send("news", b"hello")
    async for entry in client.read("news"):
        ...
"""

import ssl
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import TracebackType
from typing import Self

from veen.client import message_attachments, proofs, trust
from veen.client.client_dir import ClientDir
from veen.client.client_identity import Card
from veen.client.contradiction import Contradiction
from veen.client.evidence import Evidence
from veen.client.hub_session import HubSession
from veen.client.proofs import Proved, Resynced, exhibit, prove
from veen.client.reader import Entry, ReadRange, StreamReader
from veen.client.sender import DEFAULT_SCHEMA, Draft, MessageBuilder, OutboxRecovery, Sender, Sent, Settled, authorize
from veen.client.stream_epochs import epoch_times, epochs_open, first_since, is_over, list_epochs
from veen.client.transport import HubLink, RetryPolicy
from veen.client.tree_follower import Follower, Followers
from veen.client.trust import HubStatus, Pin
from veen.core import Checkpoint, Receipt, Unavailable, naming
from veen.core.cap_token import Capability
from veen.core.cosignature import WitnessPolicy
from veen.core.envelopes import AuthorizeResponse, StreamEpoch
from veen.core.retention import Tombstone


class Client:
    """An async context manager. The caller keeps ownership of the client directory and closes it."""

    def __init__(
        self,
        url: str,
        folder: ClientDir,
        *,
        pin: Pin | None = None,
        caps: Iterable[Capability] = (),
        retry_policy: RetryPolicy | None = None,
        http2: bool = False,
        allow_caught: bool = False,
    ) -> None:
        """`pin` is optional once this directory knows the hub at that address.

        A hub that contradicted itself is rejected with `Caught`. `allow_caught` opens it anyway, to call `forget` or to
        compare what the hub signed.
        """
        self.url = url.rstrip("/")
        self.dir = folder
        self._pin = pin
        self._caps = tuple(caps)
        self._retry_policy = retry_policy or RetryPolicy()
        self._http2 = http2
        self._allow_caught = allow_caught
        self._stack = AsyncExitStack()
        self._senders: dict[str | bytes, Sender] = {}  # by stream_id, and by the name that was used
        self._recovery: OutboxRecovery | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        for capability in self._caps:
            self.dir.caps.add(capability)
        given = self._pin is not None and not self._pin.on_first_use
        fingerprint = self._pin.certificate if self._pin and given else self.dir.state.certificate_of(self.url)
        certified: Callable[[], ssl.SSLContext] | None = None
        if fingerprint:
            certified = await trust.pinned(self.url, fingerprint, self._retry_policy.connect_s)
        link = HubLink(self.url, tls=certified, retry_policy=self._retry_policy, http2=self._http2)
        self._stack.push_async_callback(link.close)
        self.session = await HubSession.make(link, self.dir, self._pin, allow_caught=self._allow_caught)
        if fingerprint and given:
            self.dir.state.put_certificate_of(self.url, fingerprint)
        self._followers = Followers(self.session)

    # Hub state.

    async def status(self) -> HubStatus:
        """Fetch the hub's status, and follow its keys and time."""
        return await self.session.refresh()

    @property
    def hub_id(self) -> bytes:
        return self.session.hub_id

    def epoch(self) -> int:
        """The hub's current epoch; 0 if it has no epochs."""
        return self.session.trust.profile.epoch(self.session.clock.now())

    def label(self, stream: str | bytes, epoch: int | None = None) -> bytes:
        """The label of a stream, in the current or the given epoch."""
        return self.session.label(_stream_id(stream), self.epoch() if epoch is None else epoch)

    def follower(self, stream: str | bytes, epoch: int | None = None) -> Follower:
        """The verified state of a stream's log."""
        return self._followers.of(self.label(stream, epoch))

    # Sending.

    async def authorize(self, capability: Capability) -> AuthorizeResponse:
        """Store a capability and register it at the hub. Sending does this when needed."""
        self.dir.caps.add(capability)
        return await authorize(self.session, capability)

    def sender(self, stream: str | bytes) -> Sender:
        """The sender of a stream. The first call locks the client directory for sending until the client closes."""
        sender = self._senders.get(stream)
        if sender is None:
            stream_id = _stream_id(stream)
            sender = self._senders.get(stream_id) or self._open_sender(stream, stream_id)
            self._senders[stream] = self._senders[stream_id] = sender
        return sender

    def _open_sender(self, stream: str | bytes, stream_id: bytes) -> Sender:
        reader_pk = self.dir.stream_keys.public(stream_id)
        if reader_pk is None:
            raise Unavailable(f"the public key of stream {_shown(stream)} is unknown; create or import it first")
        builder = MessageBuilder(self.session, stream_id, reader_pk)
        sender = Sender(self.session, self._followers, builder, self._sending())
        self._stack.push_async_callback(sender.close)
        return sender

    def _sending(self) -> OutboxRecovery:
        if self._recovery is None:
            self._stack.enter_context(self.dir.sending())
            self._recovery = OutboxRecovery(self.session, self._followers)
        return self._recovery

    async def recover(self) -> Sequence[Settled]:
        """Send the messages that earlier runs left in the outbox. Returns their outcomes. Sending does this too."""
        return await self._sending().run()

    async def send(
        self,
        stream: str | bytes,
        body: bytes,
        *,
        schema: str | bytes = DEFAULT_SCHEMA,
        parent_id: bytes | None = None,
        attachments: Sequence[Path] = (),
        expires_at: int | None = None,
    ) -> Sent:
        """Send one message and wait for its verified receipt. `sender(stream).put` sends many without waiting."""
        schema_id = naming.schema_id(schema) if isinstance(schema, str) else schema
        draft = Draft(body, schema_id, parent_id, expires_at, tuple(attachments))
        return await self.sender(stream).put(draft)

    # Reading.

    async def read(
        self,
        stream: str | bytes,
        from_seq: int = 1,
        to_seq: int | None = None,
        *,
        follow: bool = False,
        with_proof: bool = False,
        epoch: int | None = None,
        first_epoch: int | None = None,
        last_epoch: int | None = None,
        since: int | None = None,
        until: int | None = None,
        on_pruned: Callable[[Tombstone], None] | None = None,
    ) -> AsyncGenerator[Entry, None]:
        """The entries of a stream, epoch by epoch. Each is verified before it is opened.

        `epoch` narrows to one epoch. Otherwise `from_seq` is an entry of `first_epoch` and `to_seq` one of
        `last_epoch`; a number without its epoch is one of the newest epoch with entries. `since` and `until` are hub
        times: the first is included, the second is not. The hub names the places, and its receipts prove them.

        With `follow`, it continues with new entries and later epochs until the caller stops. Entries that the hub
        pruned raise `PrunedEntries`; with `on_pruned` they are left out, and it is called with the verified tombstone.
        """
        if follow and (to_seq is not None or until is not None):
            raise ValueError("follow and to_seq or until exclude each other")
        stream_id, wanted = _stream_id(stream), ReadRange(from_seq, None, with_proof, on_pruned)
        if epoch is not None or not self.session.trust.profile.epoch_sec:
            first_epoch = epoch or 0
            last_epoch = None if follow else first_epoch
        spans = await self._spans(stream_id, from_seq, to_seq, first_epoch, last_epoch)
        if since is not None or until is not None:
            spans = await self._within(stream_id, spans, since, until)
        key = self.dir.stream_keys.secret(stream_id)
        reader = StreamReader(self.session, self._followers, stream_id, key, wanted, spans)
        epochs = [one for one in spans if not follow or is_over(self.session, one)]
        async with aclosing(reader.read(epochs)) as entries:
            async for entry in entries:
                yield entry
        if follow:
            start = max(epochs_open(self.session), first_epoch or 0)
            async with aclosing(reader.follow(start)) as entries:
                async for entry in entries:
                    yield entry

    async def _spans(
        self, stream_id: bytes, from_seq: int, to_seq: int | None, first: int | None, last: int | None
    ) -> dict[int, tuple[int, int | None]]:
        """The epochs of a range that have entries, with the first and the last entry to read of each."""
        if first is not None and (first == last or not self.session.trust.profile.epoch_sec):
            return {first: (from_seq, to_seq)}
        listed = [row.epoch for row in await self.epochs(stream_id)]
        newest = listed[-1] if listed else self.epoch()
        first = newest if first is None and from_seq > 1 else first
        last = newest if last is None and to_seq is not None else last
        found = [one for one in listed if (first is None or first <= one) and (last is None or one <= last)]
        if first is not None and from_seq > 1 and first not in found:
            found.insert(0, first)  # reading it reports that there is no such entry
        return {one: (from_seq if one == first else 1, to_seq if one == last else None) for one in found}

    async def _within(
        self, stream_id: bytes, spans: dict[int, tuple[int, int | None]], since: int | None, until: int | None
    ) -> dict[int, tuple[int, int | None]]:
        """The same, narrowed to the entries of a time."""
        found = {}
        for epoch, (first, last) in spans.items():
            begins, ends = epoch_times(self.session, epoch)
            if (until is not None and begins >= until) or (since is not None and ends is not None and ends <= since):
                continue
            if since is not None and begins < since:
                seq, _ = await self.first_since(stream_id, since, epoch=epoch)
                first = max(first, seq)
            if until is not None and (ends is None or ends > until):
                seq, _ = await self.first_since(stream_id, until, epoch=epoch)
                last = seq - 1 if last is None else min(last, seq - 1)
            if last is None or first <= last:
                found[epoch] = (first, last)
        return found

    async def epochs(self, stream: str | bytes, first: int = 0, last: int | None = None) -> list[StreamEpoch]:
        """The epochs in which a stream has entries, ascending, each with the newest stored checkpoint, verified.

        The sizes are what the hub says. Reading an epoch verifies its entries.
        """
        return await list_epochs(self.session, _stream_id(stream), first, last)

    async def newest_epoch(self, stream: str | bytes) -> int:
        """The newest epoch in which a stream has entries; the current one if it has none."""
        if not self.session.trust.profile.epoch_sec:
            return 0
        listed = await self.epochs(stream)
        return listed[-1].epoch if listed else self.epoch()

    async def _follower_in(self, stream: str | bytes, epoch: int | None) -> Follower:
        return self.follower(stream, await self.newest_epoch(stream) if epoch is None else epoch)

    async def first_since(self, stream: str | bytes, hub_ts: int, *, epoch: int | None = None) -> tuple[int, bool]:
        """The first entry of an epoch at that hub time or later, and whether the hub's receipts prove it."""
        return await first_since(self.session, await self._follower_in(stream, epoch), hub_ts)

    async def attachment(self, entry: Entry, index: int) -> bytes:
        """Download and open an attachment of an entry. Raises unless it is what the writer sealed."""
        if entry.opened is None or not 0 <= index < len(entry.attachments):
            raise ValueError(f"entry {entry.stream_seq} has no attachment {index}, or was not opened")
        identity, part = self.session.trust.known.identity, entry.attachments[index]
        return await message_attachments.download(self.session.link, identity, entry.opened, index, part)

    # Proving.

    async def receipt(self, stream: str | bytes, stream_seq: int, *, epoch: int | None = None) -> Receipt:
        """The receipt of one place, verified against the known history.

        Here and below, the epoch is the newest one with entries if none is given.
        """
        follower = await self._follower_in(stream, epoch)
        receipt = await follower.receipt(stream_seq)
        await follower.check(receipt)
        return receipt

    async def proof(
        self, stream: str | bytes, stream_seq: int, upto_seq: int | None = None, *, epoch: int | None = None
    ) -> Proved:
        """The inclusion proof of an entry, in the tree that ends with it or in the tree of `upto_seq` entries."""
        return await prove(await self._follower_in(stream, epoch), stream_seq, upto_seq)

    async def checkpoint(
        self, stream: str | bytes, upto_seq: int | None = None, *, epoch: int | None = None
    ) -> Checkpoint:
        """The checkpoint of a prefix; without `upto_seq`, of the whole log of the epoch."""
        follower = await self._follower_in(stream, epoch)
        upto = await follower.end() if upto_seq is None else upto_seq
        if upto == 0:
            raise Unavailable(f"stream {_shown(stream)} is empty and has no checkpoint")
        return await proofs.fetch_checkpoint(self.session, follower, _stream_id(stream), upto)

    async def cosigned(self, stream: str | bytes, *, epoch: int | None = None) -> Checkpoint:
        """The newest checkpoint that a witness cosigned. A `WitnessPolicy` says whether its witnesses are enough."""
        return await proofs.fetch_cosigned(self.session, await self._follower_in(stream, epoch), _stream_id(stream))

    async def order_checkpoint(self, stream: str | bytes) -> Checkpoint:
        """Let the hub store a checkpoint of the stream as it is now, and ask its witnesses to cosign it.

        Unless admission is open, this client needs a capability for the stream.
        """
        stream_id, epoch = _stream_id(stream), self.epoch()
        builder = MessageBuilder(self.session, stream_id, b"")
        order = await builder.checkpoint_order(self.label(stream), epoch)
        return await proofs.order_checkpoint(self.session, self.follower(stream, epoch), stream_id, order)

    async def evidence(
        self,
        stream: str | bytes,
        seqs: Sequence[int],
        *,
        claim: str = "",
        disclose: bool = False,
        cosigned: bool = False,
        epoch: int | None = None,
        writers: Sequence[Card] = (),
    ) -> Evidence:
        """Evidence that proves these entries to anyone.

        With `disclose`, it also proves their content; with the cards of their writers, who wrote them.
        With `cosigned` the entries are proved in the newest log that a witness cosigned.
        """
        key = self.dir.stream_keys.secret(_stream_id(stream)) if disclose else None
        if disclose and key is None:
            raise Unavailable(f"cannot disclose entries: no reader key for stream {_shown(stream)}")
        epoch = await self.newest_epoch(stream) if epoch is None else epoch
        upto = await (self.cosigned if cosigned else self.checkpoint)(stream, epoch=epoch)
        return await exhibit(self.session, self.follower(stream, epoch), upto, seqs, claim, key, writers)

    # Recovery.

    async def resync(
        self, stream: str | bytes, *, replay_from: int | None = None, epoch: int | None = None
    ) -> Resynced:
        """Advance a stream's tree to the end of the hub's log, verified against the known history."""
        follower = await self._follower_in(stream, epoch)
        return await proofs.resync(self.session, follower, _stream_id(stream), replay_from)

    async def forget(self, stream: str | bytes, *, epoch: int | None = None) -> None:
        """Start a stream over after the hub contradicted itself. Only the user may decide this.

        The hub is accepted again for every stream. The evidence files stay.
        """
        for one in await self._epochs_or(stream, epoch):
            await proofs.forget(self.session, self.follower(stream, one))

    async def accept_recovery(
        self, stream: str | bytes, *, epoch: int | None = None, policy: WitnessPolicy | None = None
    ) -> Contradiction | None:
        """Start a stream over at a hub that stated the loss of entries which this client has verified.

        Only the user may decide this. Returns the loss, with its evidence; None if the hub states none. Raises
        `Unverified`, and changes nothing, if the witnesses of `policy` have not cosigned the statement.
        """
        found = None
        for one in await self._epochs_or(stream, epoch):
            follower = self.follower(stream, one)
            lost = await follower.recovered(policy)
            if lost is not None:
                await proofs.forget(self.session, follower)
                found = found or lost
        return found

    async def _epochs_or(self, stream: str | bytes, epoch: int | None) -> Sequence[int]:
        """One epoch, or all of a stream and the current one."""
        if epoch is not None or not self.session.trust.profile.epoch_sec:
            return (epoch or 0,)
        return sorted({self.epoch(), *(row.epoch for row in await self.epochs(stream))})


def _stream_id(stream: str | bytes) -> bytes:
    return naming.stream_id(stream) if isinstance(stream, str) else stream


def _shown(stream: str | bytes) -> str:
    return repr(stream) if isinstance(stream, str) else f"{stream.hex()[:16]}…"
