/** Byte strings: hex, comparison, concatenation, and the hashes of docs/wire.md. */
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex, concatBytes, hexToBytes, utf8ToBytes } from "@noble/hashes/utils.js";

export const hex = bytesToHex;
export const concat = concatBytes;
export const utf8 = utf8ToBytes;
export const U64_MAX = (1n << 64n) - 1n;

/** The bytes of hex digits in either case; undefined if the text is something else. */
export function fromHex(text: string): Uint8Array | undefined {
  return text.length % 2 === 0 && /^[0-9a-fA-F]*$/.test(text) ? hexToBytes(text) : undefined;
}

export function equal(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** Negative, zero or positive, in the order of the bytes. */
export function compare(a: Uint8Array, b: Uint8Array): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const difference = a[i]! - b[i]!;
    if (difference !== 0) return difference;
  }
  return a.length - b.length;
}

export function u64be(value: bigint): Uint8Array {
  const made = new Uint8Array(8);
  new DataView(made.buffer).setBigUint64(0, value);
  return made;
}

/** H(x). */
export function h(data: Uint8Array): Uint8Array {
  return sha256(data);
}

/** Ht(tag, x): the tag, a zero byte, the data. */
export function ht(tag: string, ...data: Uint8Array[]): Uint8Array {
  return sha256(concat(utf8(tag), ZERO, ...data));
}

const ZERO = new Uint8Array(1);

/** A text for messages: the first 16 digits of an identifier. */
export function short(data: Uint8Array): string {
  return `${hex(data).slice(0, 16)}…`;
}

/** `count` things, in words. */
export const counted = (count: number | bigint, one: string, many = `${one}s`): string =>
  `${count} ${count === 1 || count === 1n ? one : many}`;
