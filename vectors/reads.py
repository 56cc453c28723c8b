"""read.json: proofs that permit a read, and invalid proofs."""

from dataclasses import replace

from vectors.capabilities import ISSUER, ORDERS, START
from vectors.form import Doc, secret, signer_doc, signing_key
from veen.core import cap_token, naming
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_READ_PROOF_SEC
from veen.core.read_proof import ReadProof, sign_read

TARGET, BODY = "/v1/receipt", b"a request"


def reads() -> Doc:
    hub_id, alice = naming.hub_id(signing_key("hub").public_key), signing_key("alice")
    auth_ref = cap_token.mint(ISSUER, alice.public_key, [ORDERS], 3600).auth_ref()

    def made(
        method: str = "POST",
        target: str = TARGET,
        body: bytes = BODY,
        not_after: int = START,
        auth_ref: bytes | None = None,
        hub_id: bytes = hub_id,
        name: str = "alice",
    ) -> ReadProof:
        return sign_read(
            signing_key(name),
            hub_id=hub_id,
            method=method,
            target=target,
            body=body,
            not_after=not_after,
            auth_ref=auth_ref,
        )

    good = made()
    subscribe = "/tooling/subscribe?label=00&from=1"
    proofs = {
        "a request with a body": ("POST", TARGET, BODY, good),
        "a request without body": ("GET", subscribe, b"", made("GET", subscribe, b"")),
        "by the subject of a capability": ("POST", TARGET, BODY, made(auth_ref=auth_ref)),
        "the largest time": ("POST", TARGET, BODY, made(not_after=U64_MAX)),
    }
    refused = {
        "for another method": made("PUT"),
        "for another target": made(target="/v1/proof"),
        "for another body": made(body=b"another"),
        "for another hub": made(hub_id=secret("another hub")),
        "a time that was not signed": replace(good, not_after=START + 1),
        "a capability that was not signed": replace(good, auth_ref=secret("no such token")),
        "a reader that did not sign": replace(good, reader_pk=signing_key("mallory").public_key),
        "a signature altered": replace(good, sig=bytes((good.sig[0] ^ 1,)) + good.sig[1:]),
    }
    return {
        "about": "Read proofs: a reader signs one request to a hub that answers only known readers.",
        "hub_id": hub_id,
        "reader": signer_doc(alice),
        "max_sec": MAX_READ_PROOF_SEC,
        "proofs": [_doc(name, *given) for name, given in proofs.items()],
        "refused": [{"name": name, "cbor": proof.encode()} for name, proof in refused.items()],
    }


def _doc(name: str, method: str, target: str, body: bytes, proof: ReadProof) -> Doc:
    return {
        "name": name,
        "method": method,
        "target": target,
        "body": body,
        "not_after": proof.not_after,
        "auth_ref": proof.auth_ref,
        "sig": proof.sig,
        "cbor": proof.encode(),
        "authorization": proof.header(),
    }
