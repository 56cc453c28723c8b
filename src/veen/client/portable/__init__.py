"""The portable set: a client as a folder that another machine can import. Spec 001 §15.

    manifest.cbor            the list of files, signed by the identity itself
    card.cbor                the identity card
    keystore.enc             the secrets; keystore.key without a passphrase
    routing_secret.cborseq   the routing_key of each hub
    receipts.cborseq         every stored RECEIPT
    checkpoints.cborseq      every stored CHECKPOINT
    payloads.cborseq         every MSG that waits for an answer, in order
    sync_state.cborseq       the hub of each label, and how far the label was verified
    cap_tokens.cborseq       the capabilities
    state.cborseq            the rest of the state, row by row
    evidence.cborseq         evidence of contradictions, if there is any

Attachments are uploaded before their message, so the set contains none. The rekey ladder is not portable: the importing
client starts a new one.
"""

from veen.client.portable.export import export_identity
from veen.client.portable.restore import import_identity

__all__ = ["export_identity", "import_identity"]
