/**
 * Ed25519 verification with the rule that every implementation of VEEN shares: A, R and S are canonical, A and R are not
 * of small order, and R equals [S]B - [k]A byte for byte. The library's own check uses the cofactor and accepts more
 * signatures, so only its point arithmetic is used here.
 */
import { ed25519 } from "@noble/curves/ed25519.js";
import { sha512 } from "@noble/hashes/sha2.js";

import { concat, equal, hex } from "./bytes.js";

export const Point = ed25519.Point;
export type Point = InstanceType<typeof Point>;
export const L = Point.Fn.ORDER;
export const P = Point.Fp.ORDER;

export function fromLittleEndian(data: Uint8Array): bigint {
  return BigInt(`0x${hex(Uint8Array.from(data).reverse())}`);
}

/** The canonical encodings of the eight points whose order divides 8. */
const SMALL_ORDER = [
  "0100000000000000000000000000000000000000000000000000000000000000",
  "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  "0000000000000000000000000000000000000000000000000000000000000000",
  "0000000000000000000000000000000000000000000000000000000000000080",
  "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
  "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
  "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
  "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
];
const isSmallOrder = (encoded: Uint8Array): boolean => SMALL_ORDER.includes(hex(encoded));

/** The point of a canonical encoding; undefined if there is none. */
export function decodePoint(encoded: Uint8Array): Point | undefined {
  try {
    return Point.fromBytes(encoded);
  } catch {
    return undefined;
  }
}

const MAX_KNOWN_KEYS = 256;
const PRECOMPUTE_AFTER = 16; // a table of multiples costs as much as about ten checks
const knownKeys = new Map<string, { readonly point: Point; uses: number }>();

/** The point of a public key. A file has many signatures of few keys, so keys are decoded once. */
function keyPoint(publicKey: Uint8Array): Point | undefined {
  const name = hex(publicKey);
  let known = knownKeys.get(name);
  if (!known) {
    const point = decodePoint(publicKey);
    if (!point) return undefined;
    if (knownKeys.size >= MAX_KNOWN_KEYS) knownKeys.clear();
    knownKeys.set(name, (known = { point, uses: 0 }));
  }
  if (++known.uses === PRECOMPUTE_AFTER) known.point.precompute();
  return known.point;
}

/** Forget all keys and their tables, so that the next check pays for them again, as it does in a new process. */
export function forgetKeys(): void {
  knownKeys.clear();
}

/** Whether a signature verifies. */
export function isValid(publicKey: Uint8Array, message: Uint8Array, signature: Uint8Array): boolean {
  if (publicKey.length !== 32 || signature.length !== 64) return false;
  const r = signature.subarray(0, 32);
  const s = fromLittleEndian(signature.subarray(32));
  if (s >= L || isSmallOrder(publicKey) || isSmallOrder(r)) return false;
  const a = keyPoint(publicKey);
  if (a === undefined) return false;
  const k = fromLittleEndian(sha512(concat(r, publicKey, message))) % L;
  const expected = Point.BASE.multiplyUnsafe(s).subtract(a.multiplyUnsafe(k));
  // An R that is not canonical differs from every encoding that `toBytes` returns.
  return equal(expected.toBytes(), r);
}
