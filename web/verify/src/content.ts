/** Disclosed content in readable form: by the schema of the message, else as text, else as hex. It is never trusted. */
import { equal, h, hex, utf8 } from "./bytes.js";
import { Reader, readValue, type Value } from "./cbor.js";
import { Malformed } from "./errors.js";
import { attachmentRoot } from "./mmr.js";
import { SCHEMA_NAMES } from "./schemas.js";
import type { Json } from "./report.js";
import type { Opened } from "./sealed.js";
import { type Attachment, attachedBody } from "./wire.js";

const NAME_OF = new Map(SCHEMA_NAMES.map((name) => [hex(h(utf8(name))), name.replace(/^veen\/schema:/, "")]));
const ATTACHED = h(utf8("veen.attached.v1"));
const BYTES = "veen.bytes.v1"; // bytes of any kind, also if they happen to be a map

export interface Content {
  /** The name of the schema, or its hash in hex if the name is unknown. */
  readonly schema: string;
  readonly isKnownSchema: boolean;
  readonly schemaId: Uint8Array;
  /** What the message contains besides its list of attachments. */
  readonly body: Uint8Array;
  /** The fields of an event, in their order, as text. */
  readonly fields?: readonly (readonly [name: string, value: string])[];
  /** The same fields as they were decoded. */
  readonly event?: ReadonlyMap<bigint | string, Value>;
  readonly text?: string;
  readonly hex?: string;
  readonly attachments: readonly Attachment[];
}

/** Decode an opened payload. Never throws: a body that is not what its schema says is shown as text or hex. */
export function contentOf(opened: Opened): Content {
  const { schema, body, attachments } = unwrap(opened);
  const name = NAME_OF.get(hex(schema));
  const about = { schema: name ?? hex(schema), isKnownSchema: name !== undefined, schemaId: schema, body, attachments };
  const event = name === undefined || name === BYTES ? undefined : mapIn(body);
  if (event) return { ...about, event, fields: [...event].map(([key, value]) => [String(key), shown(value, String(key))]) };
  const text = textOf(body);
  return text === undefined ? { ...about, hex: hex(body) } : { ...about, text };
}

/** The inner body of a message with attachments; the payload itself if the list is not the one that its header names. */
function unwrap({ header, body }: Opened): { schema: Uint8Array; body: Uint8Array; attachments: readonly Attachment[] } {
  const whole = { schema: header.schema, body, attachments: [] };
  if (!equal(header.schema, ATTACHED) || !header.att_root) return whole;
  try {
    const wrapped = attachedBody.decode(body);
    const root = attachmentRoot(wrapped.attachments.map((one) => one.coid));
    return equal(root, header.att_root) ? wrapped : whole;
  } catch (error) {
    if (error instanceof Malformed) return whole;
    throw error;
  }
}

/** The content as `veen evidence verify --json` prints it. */
export function contentJson(opened: Opened): { readonly [name: string]: Json } {
  const { schema, schemaId, body, event, attachments } = contentOf(opened);
  return {
    schema: hex(schemaId),
    text: textOf(body) ?? null,
    event: event ? { name: schema, fields: jsonOf(event) } : null,
    body: hex(body),
    attachments: attachments.map(({ name, size, coid }) => ({ name, size, coid: hex(coid) })),
  };
}

function jsonOf(value: Value | ReadonlyMap<bigint | string, Value>): Json {
  if (value instanceof Uint8Array) return hex(value);
  if (Array.isArray(value)) return value.map(jsonOf);
  if (value instanceof Map) return Object.fromEntries([...value].map(([name, one]) => [String(name), jsonOf(one)]));
  return value as Json;
}

/** A body that is a CBOR map; undefined if it is anything else. */
function mapIn(body: Uint8Array): Map<bigint | string, Value> | undefined {
  try {
    const reader = new Reader(body);
    const found = readValue(reader, undefined, "any");
    reader.finish();
    return found instanceof Map ? found : undefined;
  } catch (error) {
    if (error instanceof Malformed) return undefined;
    throw error;
  }
}

function shown(value: Value, key: string): string {
  if (typeof value === "string") return value;
  if (typeof value === "bigint") return key === "event_time" ? `${value} (${milliseconds(value)})` : `${value}`;
  if (value === null || typeof value === "boolean") return `${value}`;
  if (value instanceof Uint8Array) return textOf(value, true) ?? (value.length > 0 ? `0x${hex(value)}` : "(empty)");
  if (Array.isArray(value)) return `[${value.map((one) => shown(one, "")).join(", ")}]`;
  return `{${[...value].map(([name, one]) => `${name}: ${shown(one, String(name))}`).join(", ")}}`;
}

const LAST_MILLISECOND = 253_402_300_799_999n;

const milliseconds = (value: bigint): string =>
  value > LAST_MILLISECOND ? "after the year 9999" : new Date(Number(value)).toISOString();

/** Bytes as text, if they are UTF-8. `printable`: only if they look like text and not like a hash. */
function textOf(data: Uint8Array, printable = false): string | undefined {
  if (printable && (data.length === 0 || data.some((byte) => byte < 0x20 || byte > 0x7e))) return undefined;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    return undefined;
  }
}

/** Text without characters that change how it is displayed: controls, and marks that reverse its direction. */
export function visible(text: string): string {
  return text.replace(/[^\P{C}\n\t]|[\u2028\u2029]/gu, (one) => `\u27e8U+${one.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}
