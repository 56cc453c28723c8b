"""The epochs of a stream: under which labels it has entries. Spec §12.

The hub's list is a hint that saves requests. Every label is derived here, every checkpoint in the list is verified, and
an epoch of which this client has verified entries before is never left out. A hub can withhold an epoch that this
client has never seen, in the list as well as in answers about its label; `unlisted` finds a list that contradicts these
answers.
"""

import asyncio

from veen.client.hub_session import HubSession
from veen.client.tree_follower import Follower
from veen.core import Refused, Unverified
from veen.core.envelopes import EpochList, ReceiptRequest, ReceiptResponse, StreamEpoch, TimePlace
from veen.core.hub_identity import lineage

_MOST_LIST = 1 << 24
_AT_ONCE = 16  # requests
MAX_PROBED = 2_000  # epochs


def lifetime(session: HubSession) -> range:
    """The epochs that can have entries: from the first key of the hub, or of the hub it was forked from, on."""
    known = session.trust.known
    profile, skew = known.profile, known.limits.max_epoch_skew_sec
    oldest = lineage(known.identity, known.origin).identities[-1]
    born = profile.epochs_around(oldest.signing_keys[0].valid_from, skew).start
    return range(born, profile.epochs_around(session.clock.now(), skew).stop)


async def list_epochs(
    session: HubSession, stream_id: bytes, first: int = 0, last: int | None = None
) -> list[StreamEpoch]:
    """The epochs in which a stream has entries, ascending, from `first` to `last`.

    Raises `Unverified` or `Contradiction` if the hub's list does not fit the stream.
    """
    found: dict[int, StreamEpoch] = {}
    following: int | None = first
    while following is not None:
        query = f"stream={stream_id.hex()}&epoch_min={following}" + ("" if last is None else f"&epoch_max={last}")
        try:
            page = EpochList.decode(await session.link.get(f"/tooling/epochs?{query}", _MOST_LIST))
        except Refused as refused:
            if refused.code != "E.NOT_FOUND":
                raise
            return await _probed(session, stream_id, first, last)
        if page.next_epoch is not None and page.next_epoch <= following:
            raise Unverified("epoch list", f"it continues with epoch {page.next_epoch} after epoch {following}")
        for row in page.epochs:
            await _check(session, stream_id, row)
            found[row.epoch] = row
        following = page.next_epoch
    known = {label: state.size for _, label, state in session.dir.state.labels(session.hub_id)}
    for epoch in _span(session, first, last) if known else ():
        label = session.label(stream_id, epoch)
        if epoch not in found and label in known:
            found[epoch] = StreamEpoch(epoch, label, known[label])
    return [found[epoch] for epoch in sorted(found)]


def _span(session: HubSession, first: int, last: int | None) -> range:
    whole = lifetime(session)
    return range(max(whole.start, first), whole.stop if last is None else min(whole.stop, last + 1))


async def _check(session: HubSession, stream_id: bytes, row: StreamEpoch) -> None:
    """Raise unless a row is of the stream, and its checkpoint is of that label and signed by the hub."""
    made = row.checkpoint
    if row.label != session.label(stream_id, row.epoch):
        raise Unverified("epoch list", f"the label of epoch {row.epoch} does not belong to the stream")
    if made is None:
        return
    if made.label_curr != row.label or made.upto_seq > row.entries:
        raise Unverified("epoch list", f"the checkpoint of epoch {row.epoch} is of another log")
    await session.verify([made])
    made.check_labels(session.trust.profile, session.routing_key, stream_id)


async def _probed(session: HubSession, stream_id: bytes, first: int, last: int | None) -> list[StreamEpoch]:
    """The same from a hub without such a list: one request for each epoch. The sizes are not known."""
    have = await _have_entries(session, stream_id, list(_span(session, first, last)))
    return [StreamEpoch(epoch, session.label(stream_id, epoch), 1) for epoch in have]


async def unlisted(session: HubSession, stream_id: bytes, listed: list[int], before: int) -> list[int]:
    """The epochs before `before` in which the hub has entries, although its list leaves them out.

    Asks for each of the last `MAX_PROBED` that are not listed.
    """
    have = set(listed)
    left = [epoch for epoch in _span(session, 0, before - 1)[-MAX_PROBED:] if epoch not in have]
    return await _have_entries(session, stream_id, left)


async def _have_entries(session: HubSession, stream_id: bytes, epochs: list[int]) -> list[int]:
    found: list[int] = []
    for at in range(0, len(epochs), _AT_ONCE):
        some = epochs[at : at + _AT_ONCE]
        answers = await asyncio.gather(*(_has_entry(session, session.label(stream_id, epoch)) for epoch in some))
        found += [epoch for epoch, has in zip(some, answers, strict=True) if has]
    return found


async def _has_entry(session: HubSession, label: bytes) -> bool:
    try:
        await session.link.ask("/v1/receipt", ReceiptRequest(label, 1), ReceiptResponse)
    except Refused as refused:
        if refused.code != "E.NOT_FOUND":
            raise
        return refused.detail_enum is not None  # its receipt was pruned
    return True


async def first_since(session: HubSession, follower: Follower, hub_ts: int) -> tuple[int, bool]:
    """The first entry of a label at that time or later, and whether receipts prove it.

    Hub time never decreases within a label, so the receipts of two neighbours prove which of them is the first. If the
    hub pruned these receipts, nothing proves it.
    """
    query = f"label={follower.label.hex()}&hub_ts={hub_ts}"
    place = TimePlace.decode(await session.link.get(f"/tooling/time?{query}", _MOST_LIST))
    if (place.label, place.hub_ts) != (follower.label, hub_ts):
        raise Unverified("place in time", "the hub answered another question")
    for receipt, seq in ((place.before, place.stream_seq - 1), (place.at, place.stream_seq)):
        if receipt is None:
            continue
        if (receipt.label, receipt.stream_seq) != (follower.label, seq):
            raise Unverified("place in time", f"a receipt is for another entry than {seq}")
        if (receipt.hub_ts < hub_ts) != (receipt is place.before):
            raise Unverified("place in time", f"entry {place.stream_seq} is not the first at {hub_ts} or later")
        await session.verify([receipt])
        await follower.check(receipt)
    end = await follower.end()
    proved = (place.before is not None or place.stream_seq == 1) and (place.at is not None or place.stream_seq > end)
    return place.stream_seq, proved


def epochs_open(session: HubSession) -> int:
    """The oldest epoch whose labels still get entries."""
    known = session.trust.known
    return known.profile.epochs_around(session.clock.now(), known.limits.max_epoch_skew_sec).start


def is_over(session: HubSession, epoch: int) -> bool:
    """Whether no message can name a label of that epoch any more."""
    return epoch < epochs_open(session)


def epoch_times(session: HubSession, epoch: int) -> tuple[int, int | None]:
    """The hub times that entries of an epoch can have: from the first until just before the second."""
    known = session.trust.known
    length = known.profile.epoch_sec
    if not length:
        return 0, None
    skew = known.limits.max_epoch_skew_sec // length
    return max(0, epoch - skew) * length, (epoch + skew + 1) * length
