"""The capabilities of a client: files of tokens and presentations, and their expiry at each hub. Spec §6, KEX1+ §4.2.

A file is one CBOR sequence. A presentation is for one hub; a bare token, as older issuers wrote it, is for any hub that
accepts bare tokens.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from veen.client import cbor_sequence, local_files
from veen.client.client_identity import Card
from veen.client.client_state import ClientState
from veen.client.local_files import Disk
from veen.core import CapPresentation, CapToken, Malformed, Rate, Refused, SigningKey, Unverified, cap_token
from veen.core.admission import BY_DETAIL
from veen.core.cap_token import Capability, capability_type, token_of
from veen.core.hashing import h, u64be

MAX_FILE_BYTES = 1 << 24
# A capability that is not used ends after this time, or after its ttl if that is longer.
UNUSED_SEC = 30 * 86_400
_PATTERN = "*.cbor"


class CapabilityStore:
    """Capabilities by auth_ref. A file that is copied into the folder is used after the next opening."""

    def __init__(self, folder: Path, state: ClientState, disk: Disk) -> None:
        self._folder = folder
        self._tables = state.tables
        self._disk = disk
        self._tokens: dict[bytes, CapToken] = {}
        # By auth_ref, and by hub_id; a bare token has no hub.
        self._held: dict[bytes, dict[bytes | None, Capability]] = {}
        for path in sorted(folder.glob(_PATTERN)):
            for capability in read_capabilities(path):
                self._hold(capability)

    def __iter__(self) -> Iterator[CapToken]:
        """Every token, by auth_ref."""
        return (self._tokens[auth_ref] for auth_ref in sorted(self._tokens))

    def all(self) -> tuple[Capability, ...]:
        """Every token and presentation, by auth_ref."""
        return tuple(one for auth_ref in sorted(self._held) for one in self._held[auth_ref].values())

    def add(self, capability: Capability) -> None:
        """Store a capability. Raises unless its signatures verify."""
        self.add_all(capability.encode())

    def add_all(self, data: bytes) -> tuple[Capability, ...]:
        """Store all capabilities of a CBOR sequence, or none. An issuer writes one per client_id, in one file."""
        capabilities = decode_capabilities(data, "capabilities")
        new = [one for one in dict.fromkeys(capabilities) if not self._is_held(one)]
        if new:
            data = cbor_sequence.encode(new)
            self._disk.write_file(self._folder / f"{h(data).hex()[:16]}.cbor", data)
            self._disk.sync_folder(self._folder)
            for one in new:
                self._hold(one)
        return capabilities

    def for_writer(self, client_id: bytes, stream_id: bytes, now: int, hub_id: bytes) -> CapToken | None:
        """The token that this key should use for the stream at that hub; None if it has none.

        Prefers the token that the hub already knows and that is valid longest; else one that the hub does not know, so
        its validity has not started, and of these one with a presentation. The hub's clock decides about expiry; this
        check only avoids useless requests.
        """
        best, best_rank = None, (-1, -1)
        with self._tables.read() as rows:
            for auth_ref, token in self._matching(client_id, stream_id):
                row = rows.get(hub_id + auth_ref, db=rows.db["grants"])
                shown = self.shown_at(hub_id, auth_ref)
                if row is not None:
                    rank, end = (2, int.from_bytes(row, "big")), int.from_bytes(row, "big")
                elif isinstance(shown, CapPresentation):
                    rank, end = (1, token.allow.ttl), shown.not_after
                else:
                    rank, end = (0, token.allow.ttl), -1 if shown is None else now
                if now <= end and rank > best_rank:
                    best, best_rank = token, rank
        return best

    def shown_at(self, hub_id: bytes, auth_ref: bytes) -> Capability | None:
        """The form that authorizes a token at that hub: the presentation for the hub, or else the bare token."""
        held = self._held.get(auth_ref, {})
        return held.get(hub_id) or held.get(None)

    def reason_unusable(self, client_id: bytes, stream_id: bytes, hub_id: bytes) -> Refused | None:
        """Why no token of this key for the stream can be used at that hub; None if there is no such token."""
        ends: list[int] = []
        hubs: set[bytes | None] = set()
        for auth_ref, _ in self._matching(client_id, stream_id):
            end, shown = self.granted(hub_id, auth_ref), self.shown_at(hub_id, auth_ref)
            if end is not None:
                ends.append(end)
            elif isinstance(shown, CapPresentation):
                ends.append(shown.not_after)
            else:
                hubs |= self._held[auth_ref].keys()
        if ends:
            return _expired(max(ends), f" for client_id {client_id.hex()} on stream {stream_id.hex()}")
        return _for_other_hubs(hubs, hub_id) if hubs else None

    def granted(self, hub_id: bytes, auth_ref: bytes) -> int | None:
        """The last second in which the hub accepts a token; None if the hub does not know it."""
        with self._tables.read() as rows:
            row = rows.get(hub_id + auth_ref, db=rows.db["grants"])
        return None if row is None else int.from_bytes(row, "big")

    def put_granted(self, hub_id: bytes, auth_ref: bytes, expires_at: int) -> None:
        """Store the hub's answer to `authorize`."""
        with self._tables.write() as rows:
            rows.put(hub_id + auth_ref, u64be(expires_at), db=rows.db["grants"])

    def _matching(self, client_id: bytes, stream_id: bytes) -> Iterator[tuple[bytes, CapToken]]:
        for auth_ref, token in self._tokens.items():
            if token.subject_pk == client_id and stream_id in token.allow.stream_ids:
                yield auth_ref, token

    def _is_held(self, capability: Capability) -> bool:
        """Whether this capability, or a presentation of it for the same hub until a later date, is stored."""
        known = self._held.get(capability.auth_ref(), {}).get(_hub_of(capability))
        if isinstance(known, CapPresentation) and isinstance(capability, CapPresentation):
            return known.not_after >= capability.not_after
        return known is not None

    def _hold(self, capability: Capability) -> None:
        if not self._is_held(capability):
            auth_ref = capability.auth_ref()
            self._tokens[auth_ref] = token_of(capability)
            self._held.setdefault(auth_ref, {})[_hub_of(capability)] = capability


def check_presentable(shown: Capability, hub_id: bytes, bare_tokens: bool | None, now: int) -> Capability:
    """The form of a capability to send to a hub. Raises `Refused` if the hub would reject it.

    `bare_tokens` says whether the hub accepts tokens without presentation; None if it is older than presentations. Such
    a hub gets the token alone, because it cannot read anything else.
    """
    if isinstance(shown, CapPresentation):
        if shown.hub_id != hub_id:
            raise _for_other_hubs({shown.hub_id}, hub_id)
        if now > shown.not_after:
            raise _expired(shown.not_after)
        return shown.token if bare_tokens is None else shown
    if bare_tokens is False:
        raise BY_DETAIL["CAP_INVALID"].refused(
            "this hub accepts only capabilities that name it: ask the issuer for one, made with "
            f"veen cap issue --hub {hub_id.hex()}",
            hub_id=hub_id.hex(),
        )
    return shown


def at_hub(capabilities: Iterable[Capability], hub_id: bytes) -> tuple[Capability, ...]:
    """The capabilities of a file that may be shown to a hub. Raises `Refused` if all of them are for other hubs."""
    given = tuple(capabilities)
    found = tuple(one for one in given if _hub_of(one) in (None, hub_id))
    if given and not found:
        raise _for_other_hubs({_hub_of(one) for one in given}, hub_id)
    return found


def tokens_of(capabilities: Iterable[Capability]) -> tuple[CapToken, ...]:
    """The tokens, each once."""
    return tuple(dict.fromkeys(map(token_of, capabilities)))


def _hub_of(capability: Capability) -> bytes | None:
    return capability.hub_id if isinstance(capability, CapPresentation) else None


def _for_other_hubs(hubs: Iterable[bytes | None], hub_id: bytes) -> Refused:
    named = ", ".join(sorted(hub.hex() for hub in hubs if hub))
    return BY_DETAIL["CAP_INVALID"].refused(
        f"the capability is for hub {named}, and this hub is {hub_id.hex()}: ask the issuer for one for this hub",
        hub_id=hub_id.hex(),
    )


def _expired(end: int, purpose: str = "") -> Refused:
    return BY_DETAIL["CAP_TTL"].refused(
        f"the capability{purpose} expired at {end}: ask the issuer for a new one", expires_at=end
    )


def issue(
    issuer: SigningKey,
    card: Card,
    streams: Iterable[bytes],
    ttl: int,
    rate: Rate | None = None,
    *,
    hub_ids: Iterable[bytes] = (),
    not_after: int = 0,
) -> tuple[Capability, ...]:
    """One capability for each client_id on a card, so that its owner can rotate. Raises unless the card verifies.

    Returns a presentation until `not_after` for each of the hubs; without hubs, bare tokens. The validity of a token
    starts when a hub first logs it.
    """
    card.verify()
    wanted = tuple(streams)
    return present(
        issuer,
        [cap_token.mint(issuer, client_id, wanted, ttl, rate) for client_id in card.client_ids],
        hub_ids,
        not_after,
    )


def default_end(now: int, ttl: int) -> int:
    """The last second of a capability that is issued now, if its issuer names none."""
    return now + max(UNUSED_SEC, ttl)


def present(
    issuer: SigningKey, tokens: Iterable[CapToken], hub_ids: Iterable[bytes], not_after: int
) -> tuple[Capability, ...]:
    """A presentation of each token for each of the hubs; without hubs, the tokens themselves."""
    made, hubs = tuple(tokens), tuple(dict.fromkeys(hub_ids))
    if not hubs:
        return made
    return tuple(cap_token.present(issuer, token, hub_id, not_after) for hub_id in hubs for token in made)


def read_capabilities(path: Path) -> tuple[Capability, ...]:
    """Read and verify the capabilities of a file."""
    return decode_capabilities(local_files.read_file(path, MAX_FILE_BYTES), str(path))


def decode_capabilities(data: bytes, what: str) -> tuple[Capability, ...]:
    """Decode and verify the tokens and presentations of a CBOR sequence. An empty sequence is rejected."""
    found: list[Capability] = []
    try:
        for one in cbor_sequence.decode_each(capability_type, data):
            one.verify()
            found.append(one)
    except Malformed as error:
        raise Malformed(what, str(error)) from None
    except Unverified as error:
        raise Unverified(what, str(error)) from None
    if not found:
        raise Malformed(what, "it contains no capability")
    return tuple(found)
