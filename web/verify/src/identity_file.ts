/** The file `hub-identity.json`: the identity record in canonical JSON. */
import { concat, equal, fromHex, utf8 } from "./bytes.js";
import { ARRAY, BSTR, MAP, TEXT, UINT, writeHead } from "./cbor.js";
import { Malformed } from "./errors.js";
import { canonicalJson, type HubIdentity, hubIdentity } from "./identity.js";

/** Decode the file. Throws `Malformed` unless its bytes are the canonical JSON of a valid record. */
export function readIdentityFile(data: Uint8Array): HubIdentity {
  let found: unknown;
  try {
    found = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data));
  } catch {
    throw new Malformed("the identity record is not JSON text");
  }
  const identity = hubIdentity.decode(recordToCbor(found));
  // One comparison rejects repeated names, white space, floats, upper-case hex and numbers that JavaScript rounds.
  if (!equal(canonicalJson(identity), data)) throw new Malformed("the identity record is not in canonical form");
  return identity;
}

const RECORD = ["hub_id", "hub_keys", "anchoring", "origin", "realm_id"];
const KEY = ["key_id", "hub_pk", "valid_from", "valid_until", "endorsement", "role"];
const ORIGIN = ["hub_id", "routing_key", "digest"];
const TEXTS = ["anchoring", "role"];

function recordToCbor(found: unknown): Uint8Array {
  return mapToCbor(found, RECORD, (name, field) => {
    if (name === "origin") return mapToCbor(field, ORIGIN, scalarToCbor);
    if (name !== "hub_keys") return scalarToCbor(name, field);
    if (!Array.isArray(field)) throw new Malformed("hub_keys is not a list");
    return concat(writeHead(ARRAY, field.length), ...field.map((key) => mapToCbor(key, KEY, scalarToCbor)));
  });
}

/** The CBOR form of an object: its known fields in the order of their table. */
function mapToCbor(
  found: unknown,
  names: readonly string[],
  write: (name: string, field: unknown) => Uint8Array,
): Uint8Array {
  if (typeof found !== "object" || found === null) throw new Malformed("the identity record lacks an object");
  const fields = found as Record<string, unknown>;
  const present = names.filter((name) => Object.hasOwn(fields, name));
  return concat(writeHead(MAP, present.length), ...present.flatMap((name) => [textToCbor(name), write(name, fields[name])]));
}

function scalarToCbor(name: string, field: unknown): Uint8Array {
  if (typeof field === "number" && Number.isSafeInteger(field) && field >= 0) return uintToCbor(field);
  if (typeof field !== "string") throw new Malformed(`${name} has the wrong type`);
  if (TEXTS.includes(name)) return textToCbor(field);
  const content = fromHex(field);
  if (!content) throw new Malformed(`${name} is not hex`);
  return concat(writeHead(BSTR, content.length), content);
}

const textToCbor = (text: string): Uint8Array => concat(writeHead(TEXT, utf8(text).length), utf8(text));

function uintToCbor(value: number): Uint8Array {
  if (value < 2 ** 32) return writeHead(UINT, value);
  const made = new Uint8Array(9);
  made[0] = 0x1b;
  new DataView(made.buffer).setBigUint64(1, BigInt(value));
  return made;
}
