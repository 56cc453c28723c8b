/** Disclosed content: the proof of a shared secret, and opening a payload with it. docs/wire.md, "Ciphertext". */
import { chacha20poly1305, xchacha20poly1305 } from "@noble/ciphers/chacha.js";
import { expand, extract } from "@noble/hashes/hkdf.js";
import { sha256, sha512 } from "@noble/hashes/sha2.js";

import { concat, equal, hex, ht, u64be, utf8 } from "./bytes.js";
import { decodePoint, fromLittleEndian, L, P, Point } from "./ed25519.js";
import { Malformed, SIZE, Unverified } from "./errors.js";
import { leafHash, MAX_BODY_BYTES, MAX_HDR_BYTES, type Msg, type PayloadHdr, payloadHdr, type SharedProof } from "./wire.js";

const ENC_BYTES = 32;
const LENGTHS_END = 40;
const TAG_BYTES = 16;
const NO_AUTH = new Uint8Array(32);

export interface Opened {
  readonly header: PayloadHdr;
  readonly body: Uint8Array;
}

type Place = Pick<Msg, "profile_id" | "label" | "client_id" | "client_seq" | "prev_ack" | "auth_ref">;

/** Open a payload with the secret that the reader key and its `enc` share. Throws if anything does not authenticate. */
export function openSealed(place: Place, ciphertext: Uint8Array, readerPk: Uint8Array, shared: Uint8Array): Opened {
  const { bodyStart, end } = partsOf(ciphertext);
  if (ciphertext.subarray(end).some((byte) => byte !== 0)) {
    throw new Malformed("the padding contains bytes other than zero");
  }
  const { key, nonce, exporter } = hpkeContext(shared, concat(ciphertext.subarray(0, ENC_BYTES), readerPk));
  const bound = aad(place);
  const sealedHdr = ciphertext.subarray(LENGTHS_END, bodyStart);
  const header = payloadHdr.decode(decrypt("header", () => chacha20poly1305(key, nonce, bound).decrypt(sealedHdr), sealedHdr));
  if (header.cap_ref && !(place.auth_ref && equal(header.cap_ref, place.auth_ref))) {
    throw new Unverified("cap_ref is not the message's auth_ref");
  }
  const bodyKey = labeledExpand(SUITE, exporter, "sec", utf8("veen/body-k"), 32);
  const sealedBody = ciphertext.subarray(bodyStart, end);
  const body = decrypt("body", () => xchacha20poly1305(bodyKey, bodyNonce(place), bound).decrypt(sealedBody), sealedBody);
  return { header, body };
}

function decrypt(what: string, open: () => Uint8Array, sealed: Uint8Array): Uint8Array {
  if (sealed.length < TAG_BYTES) throw new Unverified(`the ${what} is shorter than its authentication tag`);
  try {
    return open();
  } catch {
    throw new Unverified(`decryption of the ${what} failed: wrong key, or altered data`);
  }
}

/** Where the parts of a ciphertext end. Throws if a length is above its limit, or above what is there. */
export function partsOf(ciphertext: Uint8Array): { bodyStart: number; end: number } {
  if (ciphertext.length < LENGTHS_END) throw new Malformed("the ciphertext is too short for the length fields", SIZE);
  const view = new DataView(ciphertext.buffer, ciphertext.byteOffset);
  const hdrLen = view.getUint32(ENC_BYTES);
  const bodyLen = view.getUint32(ENC_BYTES + 4);
  if (hdrLen > MAX_HDR_BYTES) throw new Malformed(`hdr_len ${hdrLen} is above ${MAX_HDR_BYTES}`, SIZE);
  if (bodyLen > MAX_BODY_BYTES) throw new Malformed(`body_len ${bodyLen} is above ${MAX_BODY_BYTES}`, SIZE);
  const end = LENGTHS_END + hdrLen + bodyLen;
  if (end > ciphertext.length) throw new Malformed("the ciphertext is shorter than hdr_len and body_len claim", SIZE);
  return { bodyStart: LENGTHS_END + hdrLen, end };
}

export function aad(place: Place): Uint8Array {
  const numbers = concat(u64be(place.client_seq), u64be(place.prev_ack));
  return ht("veen/aad", place.profile_id, place.label, place.client_id, numbers, place.auth_ref ?? NO_AUTH);
}

export function bodyNonce(place: Place): Uint8Array {
  const { label, prev_ack, client_id, client_seq } = place;
  return ht("veen/nonce", label, u64be(prev_ack), client_id, u64be(client_seq)).subarray(0, 24);
}

// HPKE (RFC 9180) base mode with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305 and an empty info.
const KEM_SUITE = concat(utf8("KEM"), Uint8Array.of(0x00, 0x20));
const SUITE = concat(utf8("HPKE"), Uint8Array.of(0x00, 0x20, 0x00, 0x01, 0x00, 0x03));
const NOTHING = new Uint8Array(0);

function labeledExtract(suite: Uint8Array, salt: Uint8Array, label: string, ikm: Uint8Array): Uint8Array {
  return extract(sha256, concat(utf8("HPKE-v1"), suite, utf8(label), ikm), salt);
}

function labeledExpand(suite: Uint8Array, prk: Uint8Array, label: string, info: Uint8Array, length: number): Uint8Array {
  const labeled = concat(Uint8Array.of(length >> 8, length & 0xff), utf8("HPKE-v1"), suite, utf8(label), info);
  return expand(sha256, prk, labeled, length);
}

function hpkeContext(dh: Uint8Array, kemContext: Uint8Array): { key: Uint8Array; nonce: Uint8Array; exporter: Uint8Array } {
  const eaePrk = labeledExtract(KEM_SUITE, NOTHING, "eae_prk", dh);
  const shared = labeledExpand(KEM_SUITE, eaePrk, "shared_secret", kemContext, 32);
  const pskIdHash = labeledExtract(SUITE, NOTHING, "psk_id_hash", NOTHING);
  const infoHash = labeledExtract(SUITE, NOTHING, "info_hash", NOTHING);
  const schedule = concat(Uint8Array.of(0), pskIdHash, infoHash);
  const secret = labeledExtract(SUITE, shared, "secret", NOTHING);
  return {
    key: labeledExpand(SUITE, secret, "key", schedule, 32),
    nonce: labeledExpand(SUITE, secret, "base_nonce", schedule, 12),
    exporter: labeledExpand(SUITE, secret, "exp", schedule, 32),
  };
}

const EIGHTH = Point.Fn.inv(8n);

/** Throw unless `shared` is the secret that the reader key and the message's `enc` have in common. */
export function verifyShared(proof: SharedProof, message: Msg, readerPk: Uint8Array, shared: Uint8Array): void {
  const enc = message.ciphertext.subarray(0, ENC_BYTES);
  const e = withoutTorsion(enc);
  if (!e) throw new Unverified("enc is not a public key of the curve");
  const p = readerPoint(readerPk);
  if (!p) throw new Unverified("reader_pk is not a public key of the curve");
  const s = primeOrder(lift(fromLittleEndian(shared), proof.negative));
  if (!s) throw new Unverified("shared is not a shared secret of two keys of the curve");
  const challenge = fromLittleEndian(proof.challenge);
  const response = fromLittleEndian(proof.response);
  if (challenge >= L || response >= L) throw new Unverified("a number of the content proof is not below L");
  if (challenge === 0n || response === 0n) throw new Unverified("a number of the content proof is zero");
  const first = Point.BASE.multiplyUnsafe(response).subtract(p.multiplyUnsafe(challenge));
  const second = e.multiplyUnsafe(response).subtract(s.multiplyUnsafe(challenge));
  const statement = concat(leafHash(message), readerPk, enc, shared, p.toBytes(), e.toBytes(), s.toBytes());
  const tag = concat(utf8("veen/shared-proof"), Uint8Array.of(0));
  const digest = sha512(concat(tag, statement, first.toBytes(), second.toBytes()));
  if (fromLittleEndian(digest) % L !== challenge) {
    throw new Unverified("shared is not the secret of this reader key and this enc");
  }
}

let lastReader: { readonly name: string; readonly point: Point | undefined } | undefined;

/** P of a reader key. The entries of a file usually have the same one, so the last result is kept. */
function readerPoint(readerPk: Uint8Array): Point | undefined {
  const name = hex(readerPk);
  if (lastReader?.name !== name) lastReader = { name, point: primeOrder(lift(fromLittleEndian(readerPk), false)) };
  return lastReader.point;
}

/** The point with that u coordinate and the given sign of x; undefined if u is not below p - 1, or there is none. */
function lift(u: bigint, negative: boolean): Point | undefined {
  if (u >= P - 1n) return undefined;
  const { Fp } = Point;
  const encoded = Fp.toBytes(Fp.div(Fp.sub(u, 1n), Fp.add(u, 1n)));
  if (negative) encoded[31]! |= 0x80;
  return decodePoint(encoded);
}

const primeOrder = (point: Point | undefined): Point | undefined =>
  point && !point.isSmallOrder() && point.isTorsionFree() ? point : undefined;

/** The component of `enc` in the subgroup of prime order; undefined on the twist and for a point of small order. */
function withoutTorsion(enc: Uint8Array): Point | undefined {
  if (enc.length !== ENC_BYTES) return undefined;
  const u = (fromLittleEndian(enc) & ((1n << 255n) - 1n)) % P;
  const cleared = lift(u, false)?.clearCofactor();
  return cleared && !cleared.is0() ? cleared.multiplyUnsafe(EIGHTH) : undefined;
}
