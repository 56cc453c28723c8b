"""A running hub as a source of entries, over its public API. The caller must name the labels."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from veen.client.transport import HubLink, RetryPolicy
from veen.client.tree_follower import peaks_from
from veen.client.trust import HubStatus
from veen.core import Malformed, Receipt, Refused
from veen.core.envelopes import ProofRequest, ProofResponse, ReceiptRequest, ReceiptResponse
from veen.core.envelopes import StreamRequest as PageRequest
from veen.core.envelopes import StreamResponse as PageResponse
from veen.core.hub_identity import ForkOrigin, lineage
from veen.pipeline.sources.chunk import Chunk
from veen.storage import frame
from veen.storage.frame import Data
from veen.storage.metadata import HubMetadata

T = TypeVar("T")
CHUNK_ENTRIES = 8_192
_MAX_ORIGIN_BYTES = 1 << 26


class HubChunks:
    """One hub. A stream is cut into runs that tasks can share; the hub's proofs yield their peaks."""

    def __init__(self, url: str, retry_policy: RetryPolicy | None = None) -> None:
        self.url = url
        self._retry_policy = retry_policy or RetryPolicy()
        self._sizes: dict[bytes, int] = {}

    def metadata(self) -> HubMetadata:
        return self._metadata

    @cached_property
    def _metadata(self) -> HubMetadata:
        """Metadata of the hub that answers at this URL. Only a pin proves that it is the intended hub."""

        async def ask(link: HubLink) -> tuple[HubStatus, ForkOrigin | None]:
            status = HubStatus.read(await link.get_json("/tooling/status"))
            if status.identity.origin is None:
                return status, None
            return status, ForkOrigin.decode(await link.get("/tooling/origin", _MAX_ORIGIN_BYTES))

        status, origin = self._ask(ask)
        status.identity.verify(status.signature, status.identity.hub_id)
        fork_lineage = lineage(status.identity, origin)
        fork_lineage.verify(status.profile)
        return HubMetadata(status.identity, status.signature, status.limits, status.profile, fork_lineage)

    def chunks(self, labels: frozenset[bytes] | None = None) -> list[Chunk]:
        return self.chunks_since(labels, {})

    def chunks_since(self, labels: frozenset[bytes] | None, known: Mapping[bytes, int]) -> list[Chunk]:
        """The chunks from the last known entry of each label on. Earlier entries are not requested."""
        if labels is None:
            error = Malformed("selection", f"{self.url} is a hub, and hubs do not list their labels")
            error.add_note("select labels or streams")
            raise error
        made = []
        for label, (first, size) in self._ask(lambda link: self._found(link, sorted(labels), known)).items():
            for start in range(first, size + 1, CHUNK_ENTRIES):
                end = min(start + CHUNK_ENTRIES - 1, size)
                made.append(Chunk(label, start, end, "", 0, closed=False))
        return made

    def blocks(self, chunk: Chunk) -> Iterator[tuple[Data, int]]:
        seq = chunk.start_seq
        while seq <= chunk.end_seq:
            page = self._page(chunk.label, seq, chunk.end_seq)
            if not page:
                raise Malformed("page", f"{self.url} no longer has entry {seq}")
            yield page, 0
            pos = 0
            while pos < len(page):
                pos, seq = pos + frame.length_at(page, pos), seq + 1

    def first_frame(self, chunk: Chunk) -> Data:
        return self._page(chunk.label, chunk.start_seq, chunk.start_seq)

    def peaks(self, label: bytes, size: int) -> tuple[bytes, ...]:
        async def ask(link: HubLink) -> tuple[ProofResponse, Receipt]:
            proof = await link.ask("/v1/proof", ProofRequest(label, size), ProofResponse)
            return proof, (await link.ask("/v1/receipt", ReceiptRequest(label, size), ReceiptResponse)).receipt

        proof, receipt = self._ask(ask)
        return peaks_from(proof.mmr_proof, receipt)

    def _page(self, label: bytes, first: int, last: int) -> bytes:
        """Request entries, and frame them as in a chunk file."""
        request = PageRequest(label, first, last, with_receipts=True)

        async def ask(link: HubLink) -> bytes:
            return await link.page(request)

        frames = []
        for item in PageResponse.decode(self._ask(ask)).items:
            if item.receipt is None:
                raise Malformed("page", f"entry {item.stream_seq} has no receipt")
            frames.append(frame.write(label, item.stream_seq, item.msg.encode(), item.receipt.encode())[0])
        return b"".join(frames)

    async def _found(
        self, link: HubLink, labels: Sequence[bytes], known: Mapping[bytes, int]
    ) -> dict[bytes, tuple[int, int]]:
        """The first entry to read and the last entry of each label."""
        found = {}
        for label in labels:
            first = known.get(label, 0)
            if first and not await _has(link, label, first):
                first = 0  # the hub lost entries; the reader reports that
            self._sizes[label] = await _size(link, label, max(first, self._sizes.get(label, 0)))
            found[label] = max(1, first), self._sizes[label]
        return found

    def _ask(self, work: Callable[[HubLink], Awaitable[T]]) -> T:
        async def run() -> T:
            link = HubLink(self.url, retry_policy=self._retry_policy)
            try:
                return await work(link)
            finally:
                await link.close()

        return asyncio.run(run())


async def _size(link: HubLink, label: bytes, low: int) -> int:
    """Find the last entry: double the distance until there is none, then bisect."""
    step = 1
    while await _has(link, label, low + step):
        low, step = low + step, step * 2
    while step > 1:
        step //= 2
        if await _has(link, label, low + step):
            low += step
    return low


async def _has(link: HubLink, label: bytes, stream_seq: int) -> bool:
    try:
        await link.ask("/v1/receipt", ReceiptRequest(label, stream_seq), ReceiptResponse)
    except Refused as refused:
        if refused.code == "E.NOT_FOUND":
            return False
        raise
    return True
