"""The capabilities of a client: files of tokens, and their expiry at each hub. Spec §6, KEX1+ §4.2."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from veen.client import cbor_sequence, local_files
from veen.client.client_identity import Card
from veen.client.client_state import ClientState
from veen.client.local_files import Disk
from veen.core import CapToken, Malformed, Rate, SigningKey, Unverified, cap_token
from veen.core.hashing import u64be

MAX_FILE_BYTES = 1 << 24
_PATTERN = "*.cbor"


class CapabilityStore:
    """Tokens by auth_ref. A file that is copied into the folder is used after the next opening."""

    def __init__(self, folder: Path, state: ClientState, disk: Disk) -> None:
        self._folder = folder
        self._tables = state.tables
        self._disk = disk
        self._tokens = {
            token.auth_ref(): token for path in sorted(folder.glob(_PATTERN)) for token in read_tokens(path)
        }

    def __iter__(self) -> Iterator[CapToken]:
        """Every token, by auth_ref."""
        return (self._tokens[auth_ref] for auth_ref in sorted(self._tokens))

    def add(self, token: CapToken) -> None:
        """Store a token. Raises unless its signatures verify."""
        self.add_all(token.encode())

    def add_all(self, data: bytes) -> tuple[CapToken, ...]:
        """Store all tokens of a CBOR sequence, or none. An issuer writes one per client_id, in one file."""
        tokens = decode_tokens(data, "capabilities")
        new = {auth_ref: token for token in tokens if (auth_ref := token.auth_ref()) not in self._tokens}
        if new:
            name = min(new).hex()[:16]
            self._disk.write_file(self._folder / f"{name}.cbor", cbor_sequence.encode(new.values()))
            self._disk.sync_folder(self._folder)
            self._tokens.update(new)
        return tokens

    def for_writer(self, client_id: bytes, stream_id: bytes, now: int, hub_id: bytes) -> CapToken | None:
        """The token that this key should use for the stream at that hub; None if it has none.

        Prefers the token that the hub already knows and that is valid longest; else one that the hub does not know, so
        its validity has not started. The hub's clock decides about expiry; this check only avoids useless requests.
        """
        best, best_rank = None, (-1, -1)
        with self._tables.read() as rows:
            for auth_ref, token in self._tokens.items():
                if token.subject_pk != client_id or stream_id not in token.allow.stream_ids:
                    continue
                row = rows.get(hub_id + auth_ref, db=rows.db["grants"])
                rank = (0, token.allow.ttl) if row is None else (1, int.from_bytes(row, "big"))
                if rank > best_rank and (row is None or now <= rank[1]):
                    best, best_rank = token, rank
        return best

    def lapsed_at(self, client_id: bytes, stream_id: bytes, hub_id: bytes) -> int | None:
        """The last second in which that hub accepted a token of this key for the stream; None if it never did."""
        ends = [
            self.granted(hub_id, auth_ref)
            for auth_ref, token in self._tokens.items()
            if token.subject_pk == client_id and stream_id in token.allow.stream_ids
        ]
        return max((end for end in ends if end is not None), default=None)

    def granted(self, hub_id: bytes, auth_ref: bytes) -> int | None:
        """The last second in which the hub accepts a token; None if the hub does not know it."""
        with self._tables.read() as rows:
            row = rows.get(hub_id + auth_ref, db=rows.db["grants"])
        return None if row is None else int.from_bytes(row, "big")

    def put_granted(self, hub_id: bytes, auth_ref: bytes, expires_at: int) -> None:
        """Store the hub's answer to `authorize`."""
        with self._tables.write() as rows:
            rows.put(hub_id + auth_ref, u64be(expires_at), db=rows.db["grants"])


def issue(
    issuer: SigningKey, card: Card, streams: Iterable[bytes], ttl: int, rate: Rate | None = None
) -> tuple[CapToken, ...]:
    """One token for each client_id on a card, so that its owner can rotate. Raises unless the card verifies.

    The validity of each token starts when a hub first logs it.
    """
    card.verify()
    wanted = tuple(streams)
    return tuple(cap_token.mint(issuer, client_id, wanted, ttl, rate) for client_id in card.client_ids)


def renew(issuer: SigningKey, tokens: Iterable[CapToken]) -> tuple[CapToken, ...]:
    """The same grants with new auth_refs. No hub knows them yet, so their validity starts when one first logs them."""
    return tuple(cap_token.renew(token, issuer) for token in tokens)


def read_tokens(path: Path) -> tuple[CapToken, ...]:
    """Read and verify the tokens of a file."""
    return decode_tokens(local_files.read_file(path, MAX_FILE_BYTES), str(path))


def decode_tokens(data: bytes, what: str) -> tuple[CapToken, ...]:
    """Decode and verify the tokens of a CBOR sequence. An empty sequence is rejected."""
    try:
        tokens = cbor_sequence.decode(CapToken, data)
        for token in tokens:
            token.verify()
    except Malformed as error:
        raise Malformed(what, str(error)) from None
    except Unverified as error:
        raise Unverified(what, str(error)) from None
    if not tokens:
        raise Malformed(what, "it contains no cap_token")
    return tokens
