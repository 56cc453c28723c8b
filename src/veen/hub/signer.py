"""Selects the hub key that is active at the signed time, and signs with it. Spec §8.4."""

from collections.abc import Iterable

from veen.core import HubIdentity, SigningKey
from veen.core.receipt import sign_encoded
from veen.hub.admission_state import Placed
from veen.storage import metadata
from veen.storage.paths import Folders


class Signer:
    """The hub's secret keys by time. The same time always gives the same key, so signatures are reproducible."""

    def __init__(self, folders: Folders, identity: HubIdentity) -> None:
        self._folders = folders
        self._identity = identity
        self._loaded: dict[bytes, SigningKey] = {}
        self._last: tuple[int, SigningKey] | None = None

    def at(self, hub_ts: int) -> SigningKey:
        """Raises `Unverified` if no key is active then, `Unavailable` if its file is missing."""
        last = self._last
        if last and last[0] == hub_ts:
            return last[1]
        key_id = self._identity.signing_key_at(hub_ts).key_id
        key = self._loaded.get(key_id)
        if key is None:
            key = self._loaded[key_id] = metadata.read_signing_key(self._folders, key_id)
        self._last = (hub_ts, key)
        return key

    def sign_many(self, placed: Iterable[Placed]) -> list[bytes]:
        """The encoded receipts of decided messages. Raises as `at` does."""
        return [
            sign_encoded(
                self.at(one.hub_ts), one.message.label, one.stream_seq, one.leaf_hash, one.mmr_root, one.hub_ts
            )
            for one in placed
        ]
