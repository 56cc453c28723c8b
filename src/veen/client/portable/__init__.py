"""The portable set: a client as a folder that another machine can take up. Spec 001 §15.

    manifest.cbor            what is here, signed by the identity itself
    card.cbor                the identity card
    keystore.enc             the secrets; keystore.key where there is no passphrase
    routing_secret.cborseq   the routing_key of each hub
    receipts.cborseq         every RECEIPT that was kept
    checkpoints.cborseq      every CHECKPOINT that was kept
    payloads.cborseq         every MSG that waits for an answer, in order
    sync_state.cborseq       the hub of each label, and how far the label was verified
    cap_tokens.cborseq       the capabilities
    state.cborseq            the rest of the state, row by row
    evidence.cborseq         the evidence of what hubs were caught at, where there is any

Attachments are at the hub before their message is, so none is on its way with it. The rekey ladder is not portable:
whoever takes the set up begins a new one.
"""

from veen.client.portable.export import export_identity
from veen.client.portable.restore import import_identity

__all__ = ["export_identity", "import_identity"]
