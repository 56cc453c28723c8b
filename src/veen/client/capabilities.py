"""The capabilities a client holds: files of tokens, and what each hub said of them. Spec §6, KEX1+ §4.2."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from veen.client import cbor_sequence, durable
from veen.client.client_state import ClientState
from veen.client.durable import Disk
from veen.client.identity_card import Card
from veen.core import CapToken, Malformed, Rate, SigningKey, Unverified, cap_token
from veen.core.hashing import u64be

MAX_FILE_BYTES = 1 << 24
_PATTERN = "*.cbor"


class CapBox:
    """Tokens by name. A file that someone puts into the folder counts from the next opening on."""

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
        """Keep a token. Raises where its signatures do not hold."""
        self.add_all(token.encode())

    def add_all(self, data: bytes) -> tuple[CapToken, ...]:
        """Keep every token of a CBOR sequence, or none of them: an issuer makes one per client_id, in one file."""
        tokens = decode_tokens(data, "capabilities")
        new = {auth_ref: token for token in tokens if (auth_ref := token.auth_ref()) not in self._tokens}
        if new:
            name = min(new).hex()[:16]
            self._disk.write_file(self._folder / f"{name}.cbor", cbor_sequence.encode(new.values()))
            self._disk.sync_folder(self._folder)
            self._tokens.update(new)
        return tokens

    def for_writer(self, client_id: bytes, stream_id: bytes, now: int, hub_id: bytes) -> CapToken | None:
        """The token this key should name when it writes to the stream of that hub; None where it has none.

        Of several, one the hub has been shown and that lasts longest; else one it has not been shown, whose time has
        not begun. The hub's clock decides about expiry; ours only avoids asking in vain.
        """
        best, best_rank = None, (-1, -1)
        with self._tables.read() as rows:
            for auth_ref, token in self._tokens.items():
                if token.subject_pk != client_id or stream_id not in token.allow.stream_ids:
                    continue
                row = rows.get("grants", hub_id + auth_ref)
                rank = (0, token.allow.ttl) if row is None else (1, int.from_bytes(row, "big"))
                if rank > best_rank and (row is None or now <= rank[1]):
                    best, best_rank = token, rank
        return best

    def lapsed_at(self, client_id: bytes, stream_id: bytes, hub_id: bytes) -> int | None:
        """The last second in which that hub honoured a token of this key for the stream; None where it never did."""
        ends = [
            self.granted(hub_id, auth_ref)
            for auth_ref, token in self._tokens.items()
            if token.subject_pk == client_id and stream_id in token.allow.stream_ids
        ]
        return max((end for end in ends if end is not None), default=None)

    def granted(self, hub_id: bytes, auth_ref: bytes) -> int | None:
        """The last second in which the hub honours a token; None where it has not been shown it."""
        with self._tables.read() as rows:
            row = rows.get("grants", hub_id + auth_ref)
        return None if row is None else int.from_bytes(row, "big")

    def put_granted(self, hub_id: bytes, auth_ref: bytes, expires_at: int) -> None:
        """Keep what the hub answered to `authorize`."""
        with self._tables.write() as rows:
            rows.put("grants", hub_id + auth_ref, u64be(expires_at))


def issue(
    issuer: SigningKey, card: Card, streams: Iterable[bytes], ttl: int, rate: Rate | None = None
) -> tuple[CapToken, ...]:
    """One token for each client_id on a card, so that its owner can rotate through them. Raises unless the card holds.

    Each one's time begins when a hub is first shown it.
    """
    card.verify()
    wanted = tuple(streams)
    return tuple(cap_token.mint(issuer, client_id, wanted, ttl, rate) for client_id in card.client_ids)


def renew(issuer: SigningKey, tokens: Iterable[CapToken]) -> tuple[CapToken, ...]:
    """The same leave once more: a hub knows none of these, so their time begins when it is first shown them."""
    return tuple(cap_token.renew(token, issuer) for token in tokens)


def read_tokens(path: Path) -> tuple[CapToken, ...]:
    """The tokens of a file, each verified."""
    return decode_tokens(durable.read_file(path, MAX_FILE_BYTES), str(path))


def decode_tokens(data: bytes, what: str) -> tuple[CapToken, ...]:
    """The tokens of a CBOR sequence, each verified; none at all is refused too."""
    try:
        tokens = cbor_sequence.decode(CapToken, data)
        for token in tokens:
            token.verify()
    except Malformed as error:
        raise Malformed(what, str(error)) from None
    except Unverified as error:
        raise Unverified(what, str(error)) from None
    if not tokens:
        raise Malformed(what, "there is no cap_token in it")
    return tokens
