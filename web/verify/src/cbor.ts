/** Strict deterministic CBOR (RFC 8949 §4.2.1): heads, scalars, and values whose layout the protocol leaves open. */
import { compare } from "./bytes.js";
import { type Fault, Malformed } from "./errors.js";

export const UINT = 0;
export const NINT = 1;
export const BSTR = 2;
export const TEXT = 3;
export const ARRAY = 4;
export const MAP = 5;
export const SIMPLE = 7;
export const FALSE = 0xf4;
export const TRUE = 0xf5;
export const NULL = 0xf6;

const MAJOR_NAMES = [
  "an unsigned integer",
  "a negative integer",
  "a byte string",
  "a text string",
  "an array",
  "a map",
  "a tag",
  "a simple value or float",
];
const MAX_VALUE_DEPTH = 16;
const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** A position in the data, and the faults to report once all of it has proved to be CBOR. */
export class Reader {
  pos = 0;
  readonly late = new Map<Fault, string>();
  flaw: string | undefined;

  readonly data: Uint8Array;

  /** A Buffer of Node is read as a plain array: its `slice` would share memory with the caller. */
  constructor(data: Uint8Array) {
    this.data = new Uint8Array(data.buffer, data.byteOffset, data.length);
  }

  /** The major type and the argument of the head here. Rejects truncated, reserved, indefinite and overlong heads. */
  head(): { major: number; argument: bigint } {
    const { data, pos } = this;
    const initial = data[pos];
    if (initial === undefined) throw new Malformed(`ends at byte ${pos}, where another item must begin`);
    const major = initial >> 5;
    const info = initial & 0x1f;
    if (info < 24) {
      this.pos = pos + 1;
      return { major, argument: BigInt(info) };
    }
    if (info > 27) throw new Malformed(`a reserved or indefinite length at byte ${pos}`);
    const width = 1 << (info - 24);
    if (pos + 1 + width > data.length) throw new Malformed(`ends within the head at byte ${pos}`);
    let argument = 0n;
    for (let i = 1; i <= width; i++) argument = (argument << 8n) | BigInt(data[pos + i]!);
    const least = width === 1 ? 24n : 1n << BigInt(width * 4);
    if (argument < least) throw new Malformed(`the head at byte ${pos} is not minimal`);
    this.pos = pos + 1 + width;
    return { major, argument };
  }

  uint(name: string): bigint {
    return this.expect(name, UINT);
  }

  /** The content of a byte or text string; its length is checked against the data before it is used. */
  string(name: string, major: number): Uint8Array {
    const start = this.pos;
    const length = this.expect(name, major);
    const left = this.data.length - this.pos;
    if (length > BigInt(left)) {
      throw new Malformed(`${name} at byte ${start} claims ${length} bytes, ${left} are left`);
    }
    const content = this.data.subarray(this.pos, this.pos + Number(length));
    this.pos += content.length;
    return content;
  }

  text(name: string): string {
    const start = this.pos;
    const content = this.string(name, TEXT);
    try {
      return strictUtf8.decode(content);
    } catch {
      throw new Malformed(`${name} at byte ${start} is not UTF-8`);
    }
  }

  /** The number of entries of an array or map. Each has at least one byte, which bounds it by the remaining data. */
  count(name: string, major: number): number {
    const start = this.pos;
    const count = this.expect(name, major);
    const left = this.data.length - this.pos;
    if (count > BigInt(left)) {
      throw new Malformed(`${name} at byte ${start} claims ${count} entries, ${left} bytes are left`);
    }
    return Number(count);
  }

  /** Whether the next byte is this one; it is not read. */
  isAt(byte: number): boolean {
    return this.data[this.pos] === byte;
  }

  note(fault: Fault, reason: string): void {
    if (!this.late.has(fault)) this.late.set(fault, reason);
  }

  /** Raise the first deferred fault, after the end of the outermost object. */
  finish(): void {
    const left = this.data.length - this.pos;
    if (left !== 0) throw new Malformed(`${left} bytes after the end`);
    const faults = [...this.late.keys()].sort();
    if (faults[0] !== undefined) throw new Malformed(this.late.get(faults[0])!, faults[0]);
    if (this.flaw !== undefined) throw new Malformed(this.flaw);
  }

  unexpected(name: string, wanted: string, pos: number): Malformed {
    const byte = this.data[pos]!;
    const found = byte === NULL ? "null" : MAJOR_NAMES[byte >> 5];
    return new Malformed(`${name} at byte ${pos} is ${found}, not ${wanted}`);
  }

  private expect(name: string, wanted: number): bigint {
    const start = this.pos;
    const { major, argument } = this.head();
    if (major !== wanted) throw this.unexpected(name, MAJOR_NAMES[wanted]!, start);
    return argument;
  }
}

export type Value = bigint | Uint8Array | string | boolean | null | Value[] | Map<bigint | string, Value>;

/** Decode a value without a layout. Map keys are unsigned integers or text, ascending by their encoded bytes. */
export function readValue(reader: Reader, depth = MAX_VALUE_DEPTH, order: "sorted" | "any" = "sorted"): Value {
  const start = reader.pos;
  const { major, argument } = reader.head();
  switch (major) {
    case UINT:
      return argument;
    case NINT:
      return -1n - argument;
    case BSTR:
      reader.pos = start;
      return reader.string("string", BSTR);
    case TEXT:
      reader.pos = start;
      return reader.text("string");
    case ARRAY:
    case MAP: {
      if (depth === 0) throw new Malformed(`nested too deep at byte ${start}`);
      reader.pos = start;
      return major === ARRAY ? readArray(reader, depth - 1, order) : readMap(reader, depth - 1, order);
    }
    default: {
      const byte = reader.data[start];
      if (byte === FALSE || byte === TRUE) return byte === TRUE;
      if (byte === NULL) return null;
      throw new Malformed(`a tag, float or undefined value at byte ${start}`);
    }
  }
}

function readArray(reader: Reader, depth: number, order: "sorted" | "any"): Value[] {
  const count = reader.count("array", ARRAY);
  const items: Value[] = [];
  for (let i = 0; i < count; i++) items.push(readValue(reader, depth, order));
  return items;
}

function readMap(reader: Reader, depth: number, order: "sorted" | "any"): Map<bigint | string, Value> {
  const count = reader.count("map", MAP);
  const entries = new Map<bigint | string, Value>();
  let previous = new Uint8Array(0);
  for (let i = 0; i < count; i++) {
    const start = reader.pos;
    const { major, argument } = reader.head();
    let key: bigint | string = argument;
    if (major !== UINT) {
      reader.pos = start;
      key = reader.text("key");
    }
    const encoded = reader.data.slice(start, reader.pos);
    const misplaced = order === "sorted" ? compare(encoded, previous) <= 0 : entries.has(key);
    if (misplaced) throw new Malformed(`the key at byte ${start} repeats or is out of order`);
    previous = encoded;
    entries.set(key, readValue(reader, depth, order));
  }
  return entries;
}

/** The shortest head for an argument. */
export function writeHead(major: number, argument: number): Uint8Array {
  const initial = major << 5;
  if (argument < 24) return Uint8Array.of(initial | argument);
  if (argument < 0x100) return Uint8Array.of(initial | 24, argument);
  if (argument < 0x10000) return Uint8Array.of(initial | 25, argument >> 8, argument & 0xff);
  const made = new Uint8Array(5);
  made[0] = initial | 26;
  new DataView(made.buffer).setUint32(1, argument);
  return made;
}
