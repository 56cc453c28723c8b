/** The test vectors of the project, and the small parts that several tests use. */
import { appendFileSync, readFileSync } from "node:fs";

import { fromHex } from "../src/bytes.js";
import { FAULT_NAMES, Malformed, Unverified } from "../src/errors.js";

// Vectors are JSON of many shapes; a wrong shape fails the test that reads it.
export type Vectors = any;

/** Compiled tests are in web/verify/build/test. */
const FOLDER = new URL("../../../../vectors/", import.meta.url);

/** A vector file. Integers of 16 digits or more are strings, because a number would be rounded. */
export function vectors(name: string): Vectors {
  const text = readFileSync(new URL(`${name}.json`, FOLDER), "utf8");
  const { VECTORS_READ } = process.env; // the file in which the project's tests find what was read
  if (VECTORS_READ) appendFileSync(VECTORS_READ, `${name}.json\n`);
  return JSON.parse(text.replace(/([:[,]\s*)(\d{16,})(?=\s*[,\]}])/g, '$1"$2"'));
}

export function bin(digits: string): Uint8Array {
  const found = fromHex(digits);
  if (!found) throw new Error(`not hex: ${digits}`);
  return found;
}

/** The fault that a check reports: CBOR, SIZE or VERSION, UNVERIFIED, or none. */
export function faultOf(check: () => unknown): string {
  try {
    check();
  } catch (error) {
    if (error instanceof Malformed) return FAULT_NAMES[error.fault];
    if (error instanceof Unverified) return "UNVERIFIED";
    throw error;
  }
  return "none";
}
