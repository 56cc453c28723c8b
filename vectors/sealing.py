"""ciphertext.json: sealed payloads of every shape, with all intermediate values."""

from dataclasses import dataclass, replace

from vectors.form import Doc, dh_key, profile_doc, reader_doc, secret, signer_doc, signing_key
from veen.core import Opened, PayloadHdr, Place, Profile, Sealer, attachment, msg, naming, wire_json
from veen.core.attachment import EMPTY_ROOT, SealedAttachment
from veen.core.hashing import U64_MAX, h, ht, u32be, u64be
from veen.core.hpke import KEY_BYTES, setup_receiver, xchacha_seal

CLIENT = signing_key("alice")
READER = dh_key("ciphertext/reader")
SCHEMA = naming.schema_id("chat.v1")
LABEL = naming.label(naming.routing_key(naming.hub_id(signing_key("hub").public_key)), h(b"test"), 0)
AUTH_REF = secret("ciphertext/auth_ref")
PADDED, BARE = Profile(epoch_sec=60, pad_block=256), Profile(epoch_sec=0, pad_block=0)
PLAIN = PayloadHdr(SCHEMA)


@dataclass(frozen=True, slots=True)
class Case:
    """The inputs that vary between cases."""

    name: str
    profile: Profile = BARE
    header: PayloadHdr = PLAIN
    body: bytes = b"body"
    client_seq: int = 1
    prev_ack: int = 0
    auth_ref: bytes | None = None
    attachments: tuple[bytes, ...] = ()

    def place(self) -> Place:
        profile_id = self.profile.profile_id()
        return Place(profile_id, LABEL, CLIENT.public_key, self.client_seq, self.prev_ack, self.auth_ref)


FULL = PayloadHdr(SCHEMA, secret("parent"), None, AUTH_REF, 1_700_000_000)
CASES = (
    Case("an empty body, padded", PADDED, body=b""),
    Case("no optional field", body=b""),
    Case("padded", PADDED),
    Case("padded to an exact multiple: nothing is added", PADDED, body=bytes(256 - 40 - 53 - 16)),
    Case("padded past a multiple by one byte", PADDED, body=bytes(256 - 40 - 53 - 16 + 1)),
    Case("auth_ref", auth_ref=AUTH_REF, client_seq=2, prev_ack=1),
    Case("every header field but att_root", PADDED, FULL, auth_ref=AUTH_REF, client_seq=24, prev_ack=23),
    Case("parent_id alone", header=PayloadHdr(SCHEMA, parent_id=secret("parent"))),
    Case("expires_at alone", header=PayloadHdr(SCHEMA, expires_at=0)),
    Case("the largest numbers", client_seq=U64_MAX, prev_ack=U64_MAX),
    Case("no attachment, and an att_root that says so", header=PayloadHdr(SCHEMA, att_root=EMPTY_ROOT)),
    Case("one attachment", attachments=(b"attached",)),
    Case("three attachments, one of them empty", PADDED, attachments=(b"first", b"", bytes(range(100)))),
    Case("everything", PADDED, FULL, bytes(range(256)), 300, 299, AUTH_REF, (b"one", b"two", b"three")),
)


def ciphertexts() -> Doc:
    return {
        "about": "Sealed payloads with every intermediate value, and ciphertexts that a reader refuses.",
        "client": signer_doc(CLIENT),
        "reader": reader_doc(READER),
        "label": LABEL,
        "empty_att_root": EMPTY_ROOT,
        "profiles": [profile_doc(profile) for profile in (PADDED, BARE)],
        "sealed": [_sealed(case) for case in CASES],
        "refused": _refused(),
    }


def _seal(case: Case) -> tuple[bytes, PayloadHdr, tuple[SealedAttachment, ...], bytes]:
    """`(ephemeral secret, header, attachments, ciphertext)`."""
    ephemeral, place = dh_key(f"ciphertext/{case.name}"), case.place()
    sealer = Sealer(READER.public_key, place, ephemeral)
    sealed = tuple(attachment.seal(sealer, plain) for plain in case.attachments)
    header = case.header
    if sealed:
        header = replace(header, att_root=attachment.root([one.coid for one in sealed]))
    return ephemeral.secret, header, sealed, sealer.seal(header, case.body, case.profile.pad_block)


def _sealed(case: Case) -> Doc:
    ephemeral, header, parts, ciphertext = _seal(case)
    place = case.place()
    hdr_len, body_len = (int.from_bytes(ciphertext[at : at + 4], "big") for at in (32, 36))
    opened = Opened(header, case.body, place, setup_receiver(ciphertext[:32], READER), ciphertext[:32])
    made = msg.sign(
        CLIENT,
        profile_id=place.profile_id,
        label=LABEL,
        client_seq=case.client_seq,
        prev_ack=case.prev_ack,
        auth_ref=case.auth_ref,
        ciphertext=ciphertext,
    )
    return {
        "name": case.name,
        "profile_id": place.profile_id,
        "pad_block": case.profile.pad_block,
        "client_seq": case.client_seq,
        "prev_ack": case.prev_ack,
        "auth_ref": case.auth_ref,
        "payload_hdr": wire_json.to_json(header),
        "payload_hdr_cbor": header.encode(),
        "body": case.body,
        "ephemeral_secret": ephemeral,
        "enc": ciphertext[:32],
        "aad": place.aad(),
        "nonce": place.nonce(),
        "k_body": opened.context.export(b"veen/body-k", 32),
        "hdr_len": hdr_len,
        "body_len": body_len,
        "hpke_ct_hdr": ciphertext[40 : 40 + hdr_len],
        "aead_ct_body": ciphertext[40 + hdr_len : 40 + hdr_len + body_len],
        "ciphertext": ciphertext,
        "ct_hash": made.ct_hash,
        "leaf_hash": made.leaf_hash(),
        "msg": made.encode(),
        "attachments": [
            _attachment(opened, place, i, plain, part)
            for i, (plain, part) in enumerate(zip(case.attachments, parts, strict=True))
        ],
    }


def _attachment(opened: Opened, place: Place, index: int, plain: bytes, part: SealedAttachment) -> Doc:
    own_id = msg.leaf_hash(place.label, place.profile_id, h(opened.enc), place.client_id, place.client_seq)
    return {
        "index": index,
        "plaintext": plain,
        "k_att": opened.context.export(b"veen/att-k" + u64be(index), 32),
        "nonce_id": own_id,
        "n_att": ht("veen/att-nonce", own_id + u64be(index))[:24],
        "sealed": part.sealed,
        "coid": part.coid,
    }


def _refused() -> list[Doc]:
    """One ciphertext, damaged; `fault` is CBOR, SIZE or, if only a key can detect it, UNVERIFIED."""
    case = Case("refused", PADDED, auth_ref=AUTH_REF, client_seq=2, prev_ack=1)
    good = _seal(case)[3]
    hdr_len, body_len = (int.from_bytes(good[at : at + 4], "big") for at in (32, 36))
    end = 40 + hdr_len + body_len
    cases = [
        ("shorter than enc and its lengths", "SIZE", good[:39]),
        ("empty", "SIZE", b""),
        ("cut within the body", "SIZE", good[: end - 1]),
        ("hdr_len claims more than the limit", "SIZE", good[:32] + u32be(16_385) + good[36:]),
        ("body_len claims more than the limit", "SIZE", good[:36] + u32be(1_048_321) + good[40:]),
        ("body_len claims more than is there", "SIZE", good[:36] + u32be(len(good)) + good[40:]),
        ("the first byte of padding is not zero", "CBOR", good[:end] + b"\x01" + good[end + 1 :]),
        ("the last byte of padding is not zero", "CBOR", good[:-1] + b"\x80"),
        ("enc altered", "UNVERIFIED", bytes((good[0] ^ 1,)) + good[1:]),
        ("the header altered", "UNVERIFIED", good[:40] + bytes((good[40] ^ 1,)) + good[41:]),
        ("the body altered", "UNVERIFIED", good[: end - 1] + bytes((good[end - 1] ^ 1,)) + good[end:]),
        ("one byte moved from body to padding", "UNVERIFIED", good[:36] + u32be(body_len - 1) + _zeroed(good, end - 1)),
        ("a small-order enc", "CBOR", bytes(32) + good[32:]),
        (
            "cap_ref is not auth_ref",
            "UNVERIFIED",
            _sealed_by_hand(case.place(), PayloadHdr(SCHEMA, cap_ref=secret("another"))),
        ),
    ]
    where: Doc = {"profile_id": PADDED.profile_id(), "client_seq": 2, "prev_ack": 1, "auth_ref": AUTH_REF}
    found = [{"name": name, "fault": fault, "ciphertext": data, **where} for name, fault, data in cases]
    moved: list[tuple[str, Doc]] = [
        ("at another client_seq", {"client_seq": 3}),
        ("at another prev_ack", {"prev_ack": 0}),
        ("without its auth_ref", {"auth_ref": None}),
        ("under another profile", {"profile_id": BARE.profile_id()}),
    ]
    return found + [{"name": name, "fault": "UNVERIFIED", "ciphertext": good, **where, **to} for name, to in moved]


def _sealed_by_hand(place: Place, header: PayloadHdr) -> bytes:
    """Inputs that the sealer rejects."""
    sealer = Sealer(READER.public_key, place, dh_key("ciphertext/refused/cap_ref"))
    sealed_hdr = sealer.context.seal(place.aad(), header.encode())
    key = sealer.context.export(b"veen/body-k", KEY_BYTES)
    sealed_body = xchacha_seal(key, place.nonce(), place.aad(), b"")
    return sealer.enc + u32be(len(sealed_hdr)) + u32be(len(sealed_body)) + sealed_hdr + sealed_body


def _zeroed(good: bytes, end: int) -> bytes:
    """From the header on, with zeros from `end` on."""
    return good[40:end] + bytes(len(good) - end)
