"""upload.json: proofs that permit the upload of an attachment, and invalid proofs."""

from dataclasses import replace

from vectors.capabilities import ISSUER, ORDERS, START
from vectors.form import Doc, secret, signer_doc, signing_key
from veen.core import attachment, cap_token, naming
from veen.core.attachment import UploadProof
from veen.core.hashing import U64_MAX, h
from veen.core.limits import MAX_UPLOAD_SKEW_SEC

SEALED = b"a sealed attachment"
LABEL = h(b"a label")


def uploads() -> Doc:
    hub_id, alice = naming.hub_id(signing_key("hub").public_key), signing_key("alice")
    auth_ref = cap_token.mint(ISSUER, alice.public_key, [ORDERS], 3600).auth_ref()

    def made(
        sealed: bytes = SEALED, size: int | None = None, made_at: int = START, label: bytes | None = None
    ) -> UploadProof:
        said = len(sealed) if size is None else size
        return attachment.sign_upload(
            alice, hub_id=hub_id, coid=h(sealed), auth_ref=auth_ref, size=said, made_at=made_at, label=label
        )

    good = made()
    proofs = {
        "an attachment": (SEALED, None, good),
        "an empty one": (b"", None, made(b"")),
        "the largest numbers": (SEALED, None, made(SEALED, U64_MAX, U64_MAX)),
        "of a message for a label": (SEALED, LABEL, made(label=LABEL)),
    }
    refused = {
        "for another attachment": made(b"another"),
        "a size that was not signed": replace(good, size=good.size + 1),
        "a time that was not signed": replace(good, made_at=START + 1),
        "a capability that was not signed": replace(good, auth_ref=secret("no such token")),
        "for a label that the request does not name": made(label=LABEL),
        "a signature altered": replace(good, sig=bytes((good.sig[0] ^ 1,)) + good.sig[1:]),
        "for another hub": attachment.sign_upload(
            alice, hub_id=secret("another hub"), coid=h(SEALED), auth_ref=auth_ref, size=good.size, made_at=START
        ),
        "by another key": attachment.sign_upload(
            signing_key("mallory"), hub_id=hub_id, coid=h(SEALED), auth_ref=auth_ref, size=good.size, made_at=START
        ),
    }
    return {
        "about": "Upload proofs: a capability shown for an attachment, which is no message.",
        "hub_id": hub_id,
        "subject": signer_doc(alice),
        "max_skew_sec": MAX_UPLOAD_SKEW_SEC,
        "proofs": [_doc(name, sealed, label, proof) for name, (sealed, label, proof) in proofs.items()],
        "refused": [{"name": name, "coid": h(SEALED), "cbor": proof.encode()} for name, proof in refused.items()],
    }


def _doc(name: str, sealed: bytes, label: bytes | None, proof: UploadProof) -> Doc:
    doc: Doc = {
        "name": name,
        "coid": h(sealed),
        "auth_ref": proof.auth_ref,
        "size": proof.size,
        "made_at": proof.made_at,
        "sig": proof.sig,
        "cbor": proof.encode(),
        "authorization": proof.header(),
    }
    return doc if label is None else {**doc, "label": label}
