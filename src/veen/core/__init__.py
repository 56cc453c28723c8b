"""The protocol without I/O: wire objects, their cryptography, the tree and its proofs, and the rules of admission.

Functions live in the modules listed here (`msg.sign`, `ciphertext.seal`, `proof.verify_in_receipt`); the objects they
take and give can be had from the package itself.
"""

from veen.core import (
    admin,
    admission,
    attachments,
    captoken,
    cbor,
    checkpoint,
    ciphertext,
    control,
    envelopes,
    hashing,
    identity,
    jsonform,
    jsontext,
    limits,
    mmr,
    msg,
    naming,
    powcookie,
    proof,
    rate,
    receipt,
    signing,
    tooling,
    upload,
)
from veen.core.attachments import SealedAttachment
from veen.core.captoken import Allow, CapToken, Rate
from veen.core.checkpoint import Checkpoint
from veen.core.ciphertext import Opened, Place, Sealer
from veen.core.dh import DhKey
from veen.core.errors import Fault, Malformed, Refused, Unavailable, Unverified, VeenError
from veen.core.identity import HubIdentity, HubKey, IdentitySignature
from veen.core.mmr import Mmr
from veen.core.msg import Msg
from veen.core.payload import PayloadHdr
from veen.core.profile import Profile
from veen.core.proof import Leaf, MmrProof, Step
from veen.core.rate import Bucket
from veen.core.receipt import Receipt
from veen.core.registry import Limits
from veen.core.signing import SigningKey

__all__ = [
    "Allow",
    "Bucket",
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
    "Rate",
    "Receipt",
    "Refused",
    "SealedAttachment",
    "Sealer",
    "SigningKey",
    "Step",
    "Unavailable",
    "Unverified",
    "VeenError",
    "admin",
    "admission",
    "attachments",
    "captoken",
    "cbor",
    "checkpoint",
    "ciphertext",
    "control",
    "envelopes",
    "hashing",
    "identity",
    "jsonform",
    "jsontext",
    "limits",
    "mmr",
    "msg",
    "naming",
    "powcookie",
    "proof",
    "rate",
    "receipt",
    "signing",
    "tooling",
    "upload",
]
