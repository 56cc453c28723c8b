"""What `docs/wire.md` says before its tables: the encoding, what is derived, and who judges what first."""

from veen.core import limits as bounds

HEAD = f"""\
# The wire format

This page is written by `python -m tools.wire_page` from the field tables of `veen.core`; change it there. It is what
the VEEN v0.0.1 specification asks for, with the choices of [decisions.md](decisions.md) made. Known answers for all
of it are in [vectors](../vectors/README.md), and the codes of all refusals in [errors.md](errors.md).

## Encoding

Every object has exactly one encoding, in deterministic CBOR (RFC 8949 §4.2.1). A reader refuses all others:

- Heads are as short as they can be, lengths are definite. There are no tags, no floats and no `undefined`.
- An object is an array with its fields by position, or a map with small unsigned integers as keys, in the order of
  its table. Keys that are unknown, repeated or out of order are refused, and so is a wrong number of fields.
- An absent optional field is left out: of a map with its key, of an array at the end. `null` stands for a value only
  where the table says so.
- `uint` has at most 64 bits. Text is UTF-8. Nothing follows the object.

Each object also has a JSON form: a map is an object with the names of the table (not the integers), an array is an
array, bytes are lowercase hex, absent fields are left out. Floats and repeated names are refused. *Canonical* JSON,
the form of the files, has its names sorted by their UTF-8 bytes and no white space.

## Derived values

`||` joins bytes, `u32be` and `u64be` are big-endian integers, `[:24]` takes the first 24 bytes, `CBOR(…)` is the one
encoding, text is its UTF-8 bytes. Tags are ASCII.

```text
H(x)           SHA-256(x)
Ht(tag, x)     SHA-256(tag || 00 || x)

profile_id     Ht("veen/profile", CBOR(profile))
hub_id         Ht("veen/hub-id", the hub's first hub_pk)
key_id         Ht("veen/hub-key-id", hub_pk)
routing_key    Ht("veen/routing_key", hub_id); a fork keeps that of its origin
stream_id      H(name); a name of 64 hex digits is the id itself
schema         H(name of the schema)
epoch          unix time in seconds / epoch_sec, rounded down; 0 where epoch_sec is 0
label          Ht("veen/label", routing_key || stream_id || u64be(epoch))
ct_hash        H(ciphertext), padding included
leaf_hash      Ht("veen/leaf", label || profile_id || ct_hash || client_id || u64be(client_seq))
auth_ref       Ht("veen/cap", CBOR(cap_token)), with its whole sig_chain
```

The hub's control stream has the `stream_id` `Ht("veen/control", hub_id)`; its reader has the X25519 secret
`Ht("veen/control-key", hub_id)`, which is no secret.

The admin streams of a realm are sealed in the same way, each for the X25519 secret `Ht("veen/admin-key", stream_id)`:

```text
realm_id       Ht("id/realm", name); a name of 64 hex digits is the id itself
authority      stream_id Ht("veen/admin", realm_id), messages of schema veen.fed.authority.v1
revocation     stream_id Ht("veen/revocation", realm_id), messages of schema veen.revocation.v1
label classes  stream_id Ht("veen/label-class", realm_id), messages of schema veen.label.class.v1
schemas        stream_id Ht("veen/meta-schema", realm_id), messages of schema veen.meta.schema.v1
```

A proof-of-work cookie comes in the request header `veen-pow`, in hex. It answers the challenge
`Ht("veen/pow-challenge", hub_id || H(request body))` and holds if `Ht("veen/pow", challenge || u64be(nonce))` starts
with `difficulty` zero bits.

### What is signed

All signatures are Ed25519 over one of these 32-byte digests. A signature counts only if the key and both its halves
are canonical, key and R are not of small order, and the equation holds without the cofactor.

```text
MSG            Ht("veen/sig", CBOR array of the first 9 fields: ver to ciphertext)       by client_id
RECEIPT        Ht("veen/sig", CBOR array of the first 6 fields: ver to hub_ts)           by the hub
CHECKPOINT     Ht("veen/sig", CBOR array of the first 6 fields: ver to epoch)            by the hub, and each witness
cap_token      link n: Ht("veen/cap-link", CBOR map of keys 1 to 4 || link n-1)          by issuer_pk
               link 1 has 64 zero bytes for the link before it
upload proof   Ht("veen/att-put", hub_id || coid || auth_ref || u64be(size) || u64be(made_at))
                                                                                         by the capability's subject
hub key        Ht("veen/hub-key", hub_id || hub_pk || u64be(valid_from))                 by the key before it
hub identity   Ht("veen/hub-identity", canonical JSON of the record)                     by the newest key, or a root
```

The record of a fork names `origin.cbor` by its digest, `Ht("veen/origin", the file)`, and so signs for it.

The array of a signing digest has a head of its own: `89` for MSG, `86` for RECEIPT and CHECKPOINT.

### Ciphertext

HPKE (RFC 9180) is base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, with empty `info`, to the
stream's reader key; a key or `enc` of small order is refused. `Export` is its exporter. The header is the first and
only thing sealed in the context; the body and the attachments are sealed with XChaCha20-Poly1305. Tags of 16 bytes
stand at the end of each sealed part.

```text
ciphertext     enc (32) || u32be(hdr_len) || u32be(body_len) || hpke_ct_hdr || aead_ct_body || zeros
               zeros: up to the next multiple of pad_block, none where pad_block is 0
hpke_ct_hdr    HPKE seal of CBOR(payload_hdr) with aad; hdr_len is its sealed length
aead_ct_body   seal of the body with k_body, nonce and aad; body_len is its sealed length
k_body         Export("veen/body-k", 32)
aad            Ht("veen/aad", profile_id || label || client_id || u64be(client_seq) || u64be(prev_ack) || auth_ref)
               32 zero bytes for an auth_ref of null
nonce          Ht("veen/nonce", label || u64be(prev_ack) || client_id || u64be(client_seq))[:24]

k_att          Export("veen/att-k" || u64be(i), 32), i from 0
n_att          Ht("veen/att-nonce", nonce_id || u64be(i))[:24]
nonce_id       the leaf_hash rule with H(enc) in place of ct_hash
attachment     seal with k_att, n_att and an empty aad
coid           H(sealed attachment)
att_root       root of the tree below with the coids as leaves and the tags veen/att-node and veen/att-root
               of no attachments, Ht("veen/att-root", nothing)
```

A reader takes any number of zeros after the body, refuses anything else there, and refuses a `cap_ref` that is not
the message's `auth_ref`.

### The proof of a shared secret

Whoever has `shared`, the X25519 secret that `enc` and the reader's key have in common, can open the message without
the key. The AEADs do not commit to a key, so it must be proved to be that secret: that one number w makes P of B and S
of E, on the curve of Ed25519. Points are encoded as there (RFC 8032 §5.1.2); numbers are 32 bytes, little-endian and
below L, the order of the base point B.

```text
lift(u)        the point with y = (u - 1) / (u + 1) and an even x; none where there is no such point
P              lift(reader_pk), with reader_pk = X25519(secret, 9)
E              (1/8 mod L) * 8 * lift(enc): without its part of small order. enc is read as X25519 reads it:
               without its top bit, modulo the prime
S              lift(shared), or its negative where `negative` is true
w              the clamped secret modulo L, or its negative: the one with P = wB; then S = wE
k              the prover's nonce, Ht512("veen/shared-proof-nonce", w || 32 random bytes || statement)
statement      leaf_hash || reader_pk || enc || shared || P || E || S
challenge      Ht512("veen/shared-proof", statement || kB || kE)
response       k + challenge * w mod L
Ht512(tag, x)  SHA-512(tag || 00 || x), read as a little-endian number, modulo L
```

A verifier puts `response` B - `challenge` P for kB and `response` E - `challenge` S for kE, and the challenge must come
out the same. It refuses a `reader_pk` or `shared` that is not below the prime, a P or S that is not of order L, an
`enc` that is on the twist or of small order, numbers that are not below L, and a product that is the neutral element.

## The tree

A label's tree is a Merkle Mountain Range. Leaf `s` is the `leaf_hash` of the message at `stream_seq` `s`, from 1, and
is not hashed again. A tree of n leaves is a row of perfect trees, one for each set bit of n, the largest leftmost;
their tops are the peaks.

```text
node           Ht("veen/mmr-node", left || right)
peaks          by increasing height: the rightmost tree, which is the smallest, comes first
root           the peak, where there is one; else Ht("veen/mmr-root", all peaks joined in this order)
```

### Checking an inclusion proof

The place s, the size n and the root come from a signed object, never from the proof: from a RECEIPT n is
`stream_seq`, from a CHECKPOINT `upto_seq`, of the label `label_curr`. Place and size fix the shape of the proof:

```text
i              s - 1, with 1 <= s <= n
height         place of the highest bit in which i and n differ, from 0: the height of the tree that holds the leaf
rank           number of set bits of n below that place: where this tree's peak stands among the peaks, from 0
```

1. The leaf and the head have the same label.
2. `path` has `height` steps, `peaks_after` has one peak fewer than n has set bits, and `leaf_hash` is the one
   expected.
3. Start with `leaf_hash`. The `dir` of step k, from 0, is bit k of i. For 0 the running hash is the left child and
   the result is node(running, `sib`); for 1 it is node(`sib`, running). The last result is the peak of the leaf's
   tree.
4. Put that peak into `peaks_after` at `rank`. No peak may stand twice.
5. The root of these peaks is the signed root.

### Checking a consistency proof

That a tree of n leaves continues one of m leaves, m ≤ n, is shown by the inclusion proof of leaf m in the tree of n.
Check it as above, with the label, size and root of the newer head. Where the older head is a RECEIPT, the leaf is its
`leaf_hash`. Then pick the old peaks, by increasing height:

1. the hash after the first t steps of `path`, t being the number of trailing zero bits of m: for t = 0 the leaf
   itself;
2. the `sib` of each later step with `dir` 1, in the order of the path;
3. `peaks_after` from `rank` on, with the rank of leaf m in the tree of n.

Their root is the root of the older head.

## Order of judgement

Structural faults are judged in this order, whatever the order of the fields:

1. `CBOR_INVALID`: not the encoding above, a wrong type, a number out of its range, another fixed text.
2. `FIELD_SIZE`: a byte or text string of the wrong length.
3. `VERSION`: `ver` is not {bounds.WIRE_VERSION}.
4. `CBOR_INVALID` again: the fields, each right by itself, do not stand together.

Two bounds come before all this, so that nobody is made to read on: a MSG of more than {bounds.MAX_MSG_BYTES:,} bytes
is refused unread (`SIZE_PREFILTER` at a hub), and a list beyond its bounds is refused where it stands, as a wrong
size. No MSG has a list.

Once a MSG decodes, the lengths inside `ciphertext` are judged, and they are `FIELD_SIZE` too: fewer than 40 bytes,
`hdr_len` above `max_hdr_bytes`, `body_len` above `max_body_bytes`, or 40 + `hdr_len` + `body_len` more than there is.
After that come profile, `ct_hash` and the rest of [errors.md](errors.md).

The order checks know, for each client and label, the `client_seq` and `prev_ack` last accepted, both 0 before the
first:

1. A message that is in the log already, byte for byte, is `DUPLICATE`, whatever its `prev_ack`: a client that lost a
   reply learns where its message is (decision 17).
2. `prev_ack` below the last accepted one, or above the last `stream_seq` of the label, is `PREV_ACK`.
3. `client_seq` from 1 to the last accepted one is `DUPLICATE`.
4. Any other `client_seq` than the next is `CLIENT_SEQ`. So is 0, which was never accepted: it is no duplicate.

## Layouts

`bstr 32` is a byte string of 32 bytes, `tstr ≤ n bytes` a text string of at most n bytes of UTF-8, `uint a..b` an
integer from a to b. Positions count from 1.
"""
