/** Field tables: the layout of an object is stated once, and its decoder and its TypeScript type follow from it. */
import { concat, utf8 } from "./bytes.js";
import { ARRAY, BSTR, FALSE, MAP, NULL, Reader, TEXT, TRUE, UINT, writeHead } from "./cbor.js";
import { Malformed, SIZE, VERSION } from "./errors.js";

export interface Field<T> {
  readonly optional?: true;
  read(reader: Reader, name: string): T;
}

type Table = Readonly<Record<string, Field<unknown>>>;
type Values<F extends Table> = { readonly [K in keyof F]: F[K] extends Field<infer T> ? T : never };
/** A decoded object: its fields, and the bytes that it was decoded from. Each object has exactly one encoding. */
export type Decoded<F extends Table> = Values<F> & { readonly raw: Uint8Array };

/** The layout of one object. It is also the field of an object that contains this one. */
export interface Layout<T> extends Field<T> {
  readonly name: string;
  decode(data: Uint8Array): T;
}
export type Of<L> = L extends Layout<infer T> ? T : never;

export function uint(least = 0n, most = (1n << 64n) - 1n): Field<bigint> {
  return {
    read(reader, name) {
      const found = reader.uint(name);
      if (found < least || found > most) throw new Malformed(`${name} is ${found}, not within ${least}..${most}`);
      return found;
    },
  };
}

/** A byte string of exactly `size` bytes. */
export function bstr(size = 32): Field<Uint8Array> {
  return {
    read(reader, name) {
      const content = reader.string(name, BSTR);
      if (content.length !== size) reader.note(SIZE, `${name} has ${content.length} bytes, not ${size}`);
      return content;
    },
  };
}

export function nullable<T>(field: Field<T>): Field<T | null> {
  return {
    read(reader, name) {
      if (!reader.isAt(NULL)) return field.read(reader, name);
      reader.pos++;
      return null;
    },
  };
}

/** A byte string of at most `most` bytes. */
export function bytesUpTo(most: number): Field<Uint8Array> {
  return {
    read(reader, name) {
      const content = reader.string(name, BSTR);
      if (content.length > most) reader.note(SIZE, `${name} has ${content.length} bytes, above ${most}`);
      return content;
    },
  };
}

/** A text of at most `most` bytes of UTF-8. */
export function text(most = 1024): Field<string> {
  return {
    read(reader, name) {
      const start = reader.pos;
      const found = reader.text(name);
      // A head has at most 9 bytes; only near the bound is the exact length needed.
      if (reader.pos - start > most && utf8(found).length > most) {
        reader.note(SIZE, `${name} is longer than ${most} bytes`);
      }
      return found;
    },
  };
}

export function bool(): Field<boolean> {
  return {
    read(reader, name) {
      const start = reader.pos;
      reader.head();
      const byte = reader.data[start];
      if (byte !== FALSE && byte !== TRUE) throw reader.unexpected(name, "true or false", start);
      return byte === TRUE;
    },
  };
}

/** `ver`, always 1. */
export function version(): Field<bigint> {
  return {
    read(reader, name) {
      const found = reader.uint(name);
      if (found !== 1n) reader.note(VERSION, `version ${found}, not 1`);
      return found;
    },
  };
}

export function constant(value: string): Field<string> {
  return {
    read(reader, name) {
      const found = reader.text(name);
      if (found !== value) throw new Malformed(`${name} is not '${value}'`);
      return found;
    },
  };
}

/** A list beyond its bounds is rejected before its items are read. */
export function list<T>(item: Field<T>, most: number, least = 0): Field<readonly T[]> {
  return {
    read(reader, name) {
      const count = reader.count(name, ARRAY);
      if (count < least || count > most) {
        throw new Malformed(`${name} has ${count} items, not ${least} to ${most}`, SIZE);
      }
      const items: T[] = [];
      for (let i = 0; i < count; i++) items.push(item.read(reader, name));
      return items;
    },
  };
}

export function optional<T>(field: Field<T>): Field<T | undefined> & { readonly optional: true } {
  return { optional: true, read: (reader, name) => field.read(reader, name) };
}

/** A rule that no field can state alone; it returns what is wrong. */
type Flaw<F extends Table> = (found: Decoded<F>) => string | undefined;

/** Fields by position. Optional ones are at the end. */
export function array<F extends Table>(name: string, table: F, flaw?: Flaw<F>): Layout<Decoded<F>> {
  const fields = Object.entries(table);
  const least = fields.filter(([, field]) => !field.optional).length;
  return layout(name, flaw, (reader) => {
    const count = reader.count(name, ARRAY);
    if (count < least || count > fields.length) throw new Malformed(`${name} has ${count} fields, not ${least}`);
    const values: Record<string, unknown> = {};
    fields.forEach(([key, field], at) => {
      values[key] = at < count ? field.read(reader, key) : undefined;
    });
    return values;
  });
}

/** A map with the keys 1, 2, 3 and so on, in the order of the table. */
export function intMap<F extends Table>(name: string, table: F, flaw?: Flaw<F>): Layout<Decoded<F>> {
  return map(name, table, (_, at) => writeHead(UINT, at + 1), flaw);
}

/** A map whose keys are the names of the table, in its order. */
export function textMap<F extends Table>(name: string, table: F, flaw?: Flaw<F>): Layout<Decoded<F>> {
  return map(name, table, (key) => concat(writeHead(TEXT, utf8(key).length), utf8(key)), flaw);
}

function map<F extends Table>(
  name: string,
  table: F,
  encodedKey: (key: string, at: number) => Uint8Array,
  flaw?: Flaw<F>,
): Layout<Decoded<F>> {
  const fields = Object.entries(table).map(([key, field], at) => ({ key, field, encoded: encodedKey(key, at) }));
  return layout(name, flaw, (reader) => {
    const count = reader.count(name, MAP);
    const values: Record<string, unknown> = {};
    let found = 0;
    for (const { key, field, encoded } of fields) {
      if (found < count && encoded.every((byte, at) => reader.data[reader.pos + at] === byte)) {
        reader.pos += encoded.length;
        values[key] = field.read(reader, key);
        found++;
      } else if (field.optional) {
        values[key] = undefined;
      } else {
        throw new Malformed(`${name} lacks ${key}, or has it out of order, at byte ${reader.pos}`);
      }
    }
    if (found !== count) {
      throw new Malformed(`${name} has an unknown, repeated or misplaced key at byte ${reader.pos}`);
    }
    return values;
  });
}

function layout<F extends Table>(
  name: string,
  flaw: Flaw<F> | undefined,
  readFields: (reader: Reader) => Record<string, unknown>,
): Layout<Decoded<F>> {
  const read = (reader: Reader): Decoded<F> => {
    const start = reader.pos;
    const values = readFields(reader);
    values.raw = reader.data.subarray(start, reader.pos);
    const made = values as unknown as Decoded<F>;
    if (flaw && reader.flaw === undefined && reader.late.size === 0) reader.flaw = flaw(made);
    return made;
  };
  return {
    name,
    read,
    decode(data) {
      const reader = new Reader(data);
      const made = read(reader);
      reader.finish();
      return made;
    },
  };
}
