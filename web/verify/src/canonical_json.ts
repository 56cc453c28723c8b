/** Canonical JSON (RFC 8785): each value has one text, so the hash of the text identifies the value. */
import { Malformed } from "./errors.js";

const MAX_DEPTH = 64;

export type Plain = string | number | boolean | null | readonly Plain[] | PlainObject;
export interface PlainObject {
  readonly [name: string]: Plain;
}

/** Decode canonical JSON. Throws `Malformed` for any other text, also for another text of the same value. */
export function parseCanonical(text: string, what: string): Plain {
  checkDepth(text, what);
  let value: Plain;
  try {
    value = JSON.parse(text) as Plain;
  } catch {
    throw new Malformed(`${what}: not JSON text`);
  }
  if (canonical(value) !== text || hasLoneSurrogate(value)) throw new Malformed(`${what}: not canonical JSON`);
  return value;
}

/** The canonical text of a value: that of ECMAScript, with names in the order of their UTF-16 units. */
export function canonical(value: Plain): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const names = Object.keys(value).sort((a, b) => (a < b ? -1 : 1));
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name]!)}`).join(",")}}`;
}

export function isObject(value: Plain | undefined): value is PlainObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Bound the depth before the text is parsed, so that no nesting exhausts the stack. */
function checkDepth(text: string, what: string): void {
  let depth = 0;
  let inString = false;
  for (let at = 0; at < text.length; at++) {
    const unit = text[at];
    if (inString) {
      if (unit === "\\") at++;
      else if (unit === '"') inString = false;
    } else if (unit === '"') inString = true;
    else if (unit === "[" || unit === "{") {
      if (++depth > MAX_DEPTH) throw new Malformed(`${what}: nested deeper than ${MAX_DEPTH}`);
    } else if (unit === "]" || unit === "}") depth--;
  }
}

/** Whether a text contains half of a pair of UTF-16 units, which has no UTF-8. */
function hasLoneSurrogate(value: Plain): boolean {
  if (typeof value === "string") return /\p{Surrogate}/u.test(value);
  if (Array.isArray(value)) return value.some(hasLoneSurrogate);
  return isObject(value) && Object.entries(value).some(([name, one]) => hasLoneSurrogate(name) || hasLoneSurrogate(one));
}
