"""The protocol without I/O: wire objects, cryptography, the Merkle tree with its proofs, and the admission table.

Functions live in the modules listed here (`msg.sign`, `ciphertext.seal`, `proof.verify_in_receipt`). The classes they
accept and return are also exported from the package.
"""

from veen.core import (
    admin,
    admission,
    attachment,
    cap_token,
    cbor,
    checkpoint,
    ciphertext,
    control_stream,
    envelopes,
    hashing,
    hub_identity,
    limits,
    mmr,
    msg,
    naming,
    proof,
    proof_of_work,
    receipt,
    signing,
    strict_json,
    wire_json,
)
from veen.core.attachment import SealedAttachment
from veen.core.cap_token import Allow, Bucket, CapPresentation, CapToken, Rate
from veen.core.checkpoint import Checkpoint
from veen.core.ciphertext import Opened, PayloadHdr, Place, Sealer
from veen.core.errors import Fault, Malformed, Refused, Unavailable, Unverified, VeenError
from veen.core.hpke import DhKey
from veen.core.hub_identity import HubIdentity, HubKey, IdentitySignature
from veen.core.mmr import Mmr
from veen.core.msg import Msg
from veen.core.profile import Limits, Profile
from veen.core.proof import Leaf, MmrProof, ProofStep
from veen.core.receipt import Receipt
from veen.core.signing import SigningKey

__all__ = [
    "Allow",
    "Bucket",
    "CapPresentation",
    "CapToken",
    "Checkpoint",
    "DhKey",
    "Fault",
    "HubIdentity",
    "HubKey",
    "IdentitySignature",
    "Leaf",
    "Limits",
    "Malformed",
    "Mmr",
    "MmrProof",
    "Msg",
    "Opened",
    "PayloadHdr",
    "Place",
    "Profile",
    "ProofStep",
    "Rate",
    "Receipt",
    "Refused",
    "SealedAttachment",
    "Sealer",
    "SigningKey",
    "Unavailable",
    "Unverified",
    "VeenError",
    "admin",
    "admission",
    "attachment",
    "cap_token",
    "cbor",
    "checkpoint",
    "ciphertext",
    "control_stream",
    "envelopes",
    "hashing",
    "hub_identity",
    "limits",
    "mmr",
    "msg",
    "naming",
    "proof",
    "proof_of_work",
    "receipt",
    "signing",
    "strict_json",
    "wire_json",
]
