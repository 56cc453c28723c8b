/** The wire objects that a verifier reads, as docs/wire.md lays them out. */
import { compare, concat, equal, h, ht, u64be } from "./bytes.js";
import { array, bool, bstr, bytesUpTo, constant, intMap, list, nullable, type Of, optional, text, uint, version } from "./layout.js";
import { Unverified } from "./errors.js";
import { isValid } from "./ed25519.js";

export const MAX_CIPHERTEXT_BYTES = 1_048_315;
export const MAX_HDR_BYTES = 16_384;
export const MAX_BODY_BYTES = 1_048_320;
const SIG = 64;

export const profile = intMap("profile", {
  aead: constant("xchacha20poly1305"),
  kdf: constant("hkdf-sha256"),
  sig: constant("ed25519"),
  dh: constant("x25519"),
  hpke_suite: constant("X25519-HKDF-SHA256-CHACHA20POLY1305"),
  epoch_sec: uint(),
  pad_block: uint(0n, 65_536n),
  mmr_hash: constant("sha256"),
});
export type Profile = Of<typeof profile>;
export const profileId = (found: Profile): Uint8Array => ht("veen/profile", found.raw);

export const msg = array("msg", {
  ver: version(),
  profile_id: bstr(),
  label: bstr(),
  client_id: bstr(),
  client_seq: uint(),
  prev_ack: uint(),
  auth_ref: nullable(bstr()),
  ct_hash: bstr(),
  ciphertext: bytesUpTo(MAX_CIPHERTEXT_BYTES),
  sig: bstr(SIG),
});
export type Msg = Of<typeof msg>;

export const receipt = array(
  "receipt",
  {
    ver: version(),
    label: bstr(),
    stream_seq: uint(),
    leaf_hash: bstr(),
    mmr_root: bstr(),
    hub_ts: uint(),
    hub_sig: bstr(SIG),
  },
  (found) => (found.stream_seq ? undefined : "stream_seq is 0: the first message of a label has 1"),
);
export type Receipt = Of<typeof receipt>;

export const checkpoint = array(
  "checkpoint",
  {
    ver: version(),
    label_prev: bstr(),
    label_curr: bstr(),
    upto_seq: uint(),
    mmr_root: bstr(),
    epoch: uint(),
    hub_sig: bstr(SIG),
    witness_sigs: optional(list(bstr(SIG), 64, 1)),
  },
  (found) => (found.upto_seq ? undefined : "upto_seq is 0: a checkpoint covers at least one message"),
);
export type Checkpoint = Of<typeof checkpoint>;

export const payloadHdr = intMap("payload_hdr", {
  schema: bstr(),
  parent_id: optional(bstr()),
  att_root: optional(bstr()),
  cap_ref: optional(bstr()),
  expires_at: optional(uint()),
});
export type PayloadHdr = Of<typeof payloadHdr>;

export const pathStep = intMap("path step", { dir: uint(0n, 1n), sib: bstr() });
export const mmrProof = intMap("mmr_proof", {
  ver: version(),
  leaf_hash: bstr(),
  path: list(pathStep, 64),
  peaks_after: list(bstr(), 63),
});
export type MmrProof = Of<typeof mmrProof>;

export const sharedProof = intMap("shared proof", { negative: bool(), challenge: bstr(), response: bstr() });
export type SharedProof = Of<typeof sharedProof>;

export const labelSize = intMap("label size", { label: bstr(), size: uint(1n), mmr_root: bstr() });
export type LabelSize = Of<typeof labelSize>;
export const provedSize = intMap("proved size", { row: labelSize, place: uint(1n), mmr_proof: mmrProof });
export type ProvedSize = Of<typeof provedSize>;

export const rate = intMap("rate", { per_sec: uint(), burst: uint() });
export const allow = intMap(
  "allow",
  { stream_ids: list(bstr(), 1024, 1), ttl: uint(), rate: optional(rate) },
  (found) =>
    ascending(found.stream_ids, (id) => id) ? undefined : "stream_ids are not in strictly ascending order",
);
export const capToken = intMap("cap_token", {
  ver: version(),
  issuer_pk: bstr(),
  subject_pk: bstr(),
  allow,
  sig_chain: list(bstr(SIG), 8, 1),
});
export const capPresentation = intMap("cap_presentation", {
  ver: version(),
  hub_id: bstr(),
  not_after: uint(),
  token: capToken,
  sig: bstr(SIG),
});
export const uploadProof = intMap("upload proof", {
  ver: version(),
  auth_ref: bstr(),
  size: uint(),
  made_at: uint(),
  sig: bstr(SIG),
});

const attachment = intMap("attachment", { coid: bstr(), size: uint(0n, 1n << 30n), name: text() });
export type Attachment = Of<typeof attachment>;
export const attachedBody = intMap("attached body", {
  ver: version(),
  attachments: list(attachment, 1024, 1),
  schema: bstr(),
  body: bytesUpTo(MAX_BODY_BYTES),
});

/** Whether the keys of the items increase strictly. */
export function ascending<T>(items: readonly T[], key: (item: T) => Uint8Array): boolean {
  return items.every((item, at) => at === 0 || compare(key(items[at - 1]!), key(item)) < 0);
}

/** A receipt or a checkpoint: it signs a root and the size of its tree. */
export type Head = Receipt | Checkpoint;
export const isReceipt = (head: Head): head is Receipt => "stream_seq" in head;
export const sizeOf = (head: Head): bigint => (isReceipt(head) ? head.stream_seq : head.upto_seq);
export const labelOf = (head: Head): Uint8Array => (isReceipt(head) ? head.label : head.label_curr);

/** The digest that a signature in the field after `fields` covers: these fields as an array of their own. */
function arrayDigest(raw: Uint8Array, fields: number, end: number): Uint8Array {
  return ht("veen/sig", Uint8Array.of(0x80 | fields), raw.subarray(1, end));
}

const SIG_ITEM = 2 + SIG;

/** What the hub signs, and each witness of a checkpoint. */
export function headDigest(head: Head): Uint8Array {
  const sigs = isReceipt(head) ? undefined : head.witness_sigs;
  // At most 64 signatures: the head of their array has one byte, or two from 24 on.
  const tail = sigs ? (sigs.length < 24 ? 1 : 2) + sigs.length * SIG_ITEM : 0;
  return arrayDigest(head.raw, 6, head.raw.length - tail - SIG_ITEM);
}

export const msgDigest = (found: Msg): Uint8Array => arrayDigest(found.raw, 9, found.raw.length - SIG_ITEM);

export function leafHash(found: Msg): Uint8Array {
  const { label, profile_id, ct_hash, client_id, client_seq } = found;
  return ht("veen/leaf", label, profile_id, ct_hash, client_id, u64be(client_seq));
}

/** Throw unless the message has the content that its leaf commits to, and its writer signed it. */
export function verifyMsg(found: Msg): void {
  if (!equal(h(found.ciphertext), found.ct_hash)) throw new Unverified("ct_hash does not match the ciphertext");
  if (!isValid(found.client_id, msgDigest(found), found.sig)) {
    throw new Unverified("the writer's signature of the message does not verify");
  }
}

/** Throw unless the labels of a checkpoint are the stream's, of its epoch and the one before. */
export function checkLabels(found: Checkpoint, epochs: Profile, routingKey: Uint8Array, streamId: Uint8Array): void {
  const { epoch, label_curr, label_prev } = found;
  if (!epochs.epoch_sec && epoch) throw new Unverified(`epoch ${epoch}, but the profile has no epochs`);
  if (!equal(labelAt(routingKey, streamId, epoch), label_curr)) {
    throw new Unverified("label_curr is not the stream's label in that epoch");
  }
  if (equal(label_prev, label_curr)) return;
  if (epoch === 0n || !equal(labelAt(routingKey, streamId, epoch - 1n), label_prev)) {
    throw new Unverified("label_prev is not the stream's label in the epoch before");
  }
}

export const labelAt = (routingKey: Uint8Array, streamId: Uint8Array, epoch: bigint): Uint8Array =>
  ht("veen/label", routingKey, streamId, u64be(epoch));

/** The known witnesses that signed a checkpoint. */
export function witnessesOf(found: Checkpoint, known: readonly Uint8Array[]): Uint8Array[] {
  const digest = headDigest(found);
  return known.filter((pk) => (found.witness_sigs ?? []).some((sig) => isValid(pk, digest, sig)));
}

/** Throw unless every link of a token was signed by its issuer. */
export function verifyToken(token: Of<typeof capToken>): void {
  const chain = token.sig_chain;
  // Key 5, the head of the array, and each signature with its head of two bytes.
  const fields = token.raw.subarray(1, token.raw.length - 2 - chain.length * SIG_ITEM);
  let before: Uint8Array = new Uint8Array(SIG);
  for (const link of chain) {
    const digest = ht("veen/cap-link", Uint8Array.of(0xa4), fields, before);
    if (!isValid(token.issuer_pk, digest, link)) throw new Unverified("a link of the token does not verify");
    before = link;
  }
}

/** Throw unless the issuer of a valid token presented it to this hub. */
export function verifyPresentation(found: Of<typeof capPresentation>, hubId: Uint8Array): void {
  if (!equal(found.hub_id, hubId)) throw new Unverified("the presentation is for another hub");
  verifyToken(found.token);
  const fields = found.raw.subarray(1, found.raw.length - 1 - SIG_ITEM);
  const digest = ht("veen/cap-presentation", Uint8Array.of(0xa4), fields);
  if (!isValid(found.token.issuer_pk, digest, found.sig)) throw new Unverified("the presentation does not verify");
}

/** Throw unless the subject of a capability signed the upload of this attachment, for the label that the request names. */
export function verifyUpload(
  found: Of<typeof uploadProof>,
  hubId: Uint8Array,
  coid: Uint8Array,
  subjectPk: Uint8Array,
  label: Uint8Array = new Uint8Array(),
): void {
  const signed = concat(hubId, coid, found.auth_ref, u64be(found.size), u64be(found.made_at), label);
  if (!isValid(subjectPk, ht("veen/att-put", signed), found.sig)) throw new Unverified("the upload does not verify");
}

