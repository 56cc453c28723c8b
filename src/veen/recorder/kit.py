"""What a producer is given: leave to append to its streams, their public keys, and the key that opens the map."""

from dataclasses import dataclass, field
from typing import ClassVar

from veen.client import ClientDir, ReaderKey, StreamKey, sequence
from veen.core import CapToken, DhKey, Refused, Unverified
from veen.core.cbor import Bstr, Constant, ListOf, Map, Nested, Version, Wire
from veen.overlays.record import CHANGES
from veen.overlays.record.events import MAX_LISTED
from veen.recorder.routes import CODE


@dataclass(frozen=True, slots=True)
class Kit(Wire):
    """Whoever holds it can read the map; only the owner of the card it was made for can write."""

    hub_id: bytes
    admin_pk: bytes
    changes: ReaderKey = field(repr=False)
    streams: tuple[StreamKey, ...]
    tokens: tuple[CapToken, ...]

    LAYOUT: ClassVar = Map(
        "recorder kit",
        {
            1: Version(),
            2: Constant("kind", "veen/recorder-kit"),
            3: Bstr("hub_id"),
            4: Bstr("admin_pk"),
            5: Nested("changes", ReaderKey),
            6: ListOf("streams", Nested("stream", StreamKey), most=MAX_LISTED, least=1),
            7: ListOf("tokens", Nested("token", CapToken), most=MAX_LISTED, least=1),
        },
    )

    def flaw(self) -> str | None:
        return None if self.changes.name == CHANGES else f"its reader key is not that of {CHANGES}"

    def join(self, folder: ClientDir) -> None:
        """Take it in. Raises where it is not for this client, or this client administers the recorder."""
        if folder.card.id_sign == self.admin_pk:
            raise Refused(CODE, "this identity administers the recorder, and an administrator is no producer")
        for token in self.tokens:
            token.verify()
        own = set(folder.card.client_ids)
        if not any(token.subject_pk in own for token in self.tokens):
            raise Unverified("recorder kit", "it was made for another identity")
        folder.stream_keys.import_secret(CHANGES, DhKey(self.changes.secret))
        for stream in self.streams:
            folder.stream_keys.add_public(stream.name, stream.public_key)
        folder.caps.add_all(sequence.encode(self.tokens))
