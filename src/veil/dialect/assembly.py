"""From a payload to shards that existing nodes understand, and from a reconstructed object of theirs to its payload."""

from veil.assembly import Opened, Published, Received
from veil.dialect.form import DIALECT, choose_shape
from veil.dialect.keys import PUBLIC_KEY, object_nonce
from veil.dialect.signing import SchnorrKey, sign_object, verify_object
from veil.errors import Malformed, Refused, Unverified
from veil.hashing import h
from veil.limits import MAX_OBJECT_BYTES
from veil.namespaces import ErasureMode, NamespacePolicy
from veil.objects import Address, Flags, ObjectV1
from veil.sealing.aead import Key, Lock
from veil.sealing.signing import SigningKey
from veil.shards import ShardSet, ShardV1

_PADDING = bytes(8)


def publish(
    payload: bytes,
    address: Address,
    lock: Lock = PUBLIC_KEY,
    *,
    flags: Flags = Flags.PUBLIC,
    signer: SchnorrKey | SigningKey | None = None,
    mode: ErasureMode = ErasureMode.HARDENED,
    jitter: int = 0,
    now_step: int = 0,
    nonce: bytes | None = None,
) -> Published:
    """Seal a payload as existing nodes do. Raise `Refused` where its encoding is longer than they take."""
    nonce = object_nonce(address, now_step, payload) if nonce is None else nonce
    sealed = lock.seal(address, nonce, payload)
    obj = ObjectV1(address, flags & ~Flags.SIGNED, nonce, sealed, _PADDING, payload_root=h(payload))
    encoded = DIALECT.encode_object(sign_object(obj, signer) if signer else obj)
    if len(encoded) > MAX_OBJECT_BYTES:
        raise Refused("object", f"{len(encoded)} bytes as existing nodes write it, more than {MAX_OBJECT_BYTES}")
    root = h(encoded)
    of = ShardSet(address, root, choose_shape(len(encoded), root, jitter), mode)
    shards = enumerate(DIALECT.cut(of, encoded))
    return Published(of, encoded, tuple(DIALECT.encode_shard(ShardV1(of, index, part)) for index, part in shards))


def receive(of: ShardSet, encoded: bytes, policy: NamespacePolicy) -> Received:
    """The object that was put together from shards, if it may stand where they say. Needs no key."""
    obj = DIALECT.decode_object(encoded)
    if obj.address != of.address:
        raise Malformed("object", "it names another address than its shards")
    if not obj.signed and policy.requires_signature(obj.address.namespace):
        raise Refused("object", f"objects of namespace {obj.address.namespace} must be signed")
    verify_object(obj)
    return Received(of, obj)


def open_object(received: Received, key: Key | None = None) -> Opened:
    """What an object says, for who has its key; a public one opens without."""
    obj = received.obj
    keys = [found for found in (key, PUBLIC_KEY if obj.flags & Flags.PUBLIC else None) if found is not None]
    for candidate in keys:
        try:
            payload = candidate.open(obj.address, obj.nonce, obj.ciphertext)
        except Unverified:
            continue
        if h(payload) != obj.payload_root:
            raise Unverified("object", "it does not have the root of payload that it names")
        return Opened(obj.address, obj.flags, payload, obj.sender_pubkey)
    raise Unverified("object", "does not open: another key, or altered")
