/** Query results as evidence: the rows, and what the hub signed of the query, its digest and the events behind it. */
import { equal, fromHex, h, hex, utf8 } from "./bytes.js";
import { canonical, isObject, parseCanonical, type Plain, type PlainObject } from "./canonical_json.js";
import { BSTR, type Reader, UINT } from "./cbor.js";
import { Malformed, Unverified } from "./errors.js";
import { type Check, checker, type Entry, evidence, type Evidence, type Knowledge, MAX_EVIDENCE_BYTES, type Report, verifyDecoded } from "./evidence.js";
import { routingKey } from "./identity.js";
import { constant, type Field, intMap, list, optional, text, textMap, uint, version } from "./layout.js";
import { labelAt, type Receipt } from "./wire.js";

export const RESULT_KIND = "veen.query_result.v1";
const MAX_PARTS = 64;
const MAX_BODY_BYTES = 1_048_320;
const MAX_POSITION_BYTES = 64;
const REQUESTS = "record/query/requests";
const RESULTS = "record/query/results";
const RECORDED = h(utf8("record.event.v1"));

const resultEvidence = intMap("query result", {
  kind: constant(RESULT_KIND),
  ver: version(),
  rows: text(MAX_EVIDENCE_BYTES),
  summary: text(MAX_EVIDENCE_BYTES),
  parts: list(evidence, MAX_PARTS, 1),
});

/** An unsigned integer, or bytes for sources without numbered positions. */
const position: Field<bigint | Uint8Array> = {
  read(reader: Reader, name: string) {
    if (reader.data[reader.pos]! >> 5 === UINT) return reader.uint(name);
    const content = reader.string(name, BSTR);
    if (content.length < 1 || content.length > MAX_POSITION_BYTES) throw new Malformed(`${name} has ${content.length} bytes`);
    return content;
  },
};

const recordEvent = textMap(
  "record event",
  {
    subject_id: text(),
    event_type: text(),
    event_time: uint(),
    origin: text(),
    payload: text(MAX_BODY_BYTES),
    source: optional(text()),
    position: optional(position),
  },
  ({ subject_id, event_type, origin, source, position: place }) => {
    if (!subject_id || !event_type || !origin) return "a field of the event is empty";
    return (source === undefined) === (place === undefined) ? undefined : "source and position must be given together";
  },
);

/** The verified content of a query result. */
export interface QueryResult {
  readonly query: PlainObject;
  readonly digest: PlainObject;
  readonly rows: readonly PlainObject[];
  readonly request: Entry;
  readonly answer: Entry;
  /** The subject of the query, as the service recorded it. */
  readonly askedBy: string;
  /** Events whose receipts are in the file, and events of other hubs, whose receipts this hub does not have. */
  readonly receipts: number;
  readonly elsewhere: number;
}

/** Whether a file states that it is the evidence of a query result. It may still be damaged. */
export function isQueryResult(data: Uint8Array): boolean {
  const begin = utf8(RESULT_KIND);
  return data[1] === 1 && data[2] === (0x60 | begin.length) && equal(data.subarray(3, 3 + begin.length), begin);
}

/** The id of the hub that a file names, of either kind. Throws `Malformed` if it does not decode. */
export function hubIdIn(data: Uint8Array): Uint8Array {
  return (isQueryResult(data) ? resultEvidence.decode(data).parts[0]! : evidence.decode(data)).identity.hub_id;
}

/** Verify a file as `verify` does, and what connects the rows with what the hub signed. */
export function verifyResult(data: Uint8Array, knowledge: Knowledge = {}, checks: Check[] = []): Report {
  const check = checker(checks);
  const shown = check("the file is well-formed and not truncated", () => {
    if (data.length > MAX_EVIDENCE_BYTES) throw new Malformed(`${data.length} bytes, above ${MAX_EVIDENCE_BYTES}`);
    const found = resultEvidence.decode(data);
    return { ...found, table: rowsOf(found.rows), listed: parseCanonical(found.summary, "summary") };
  });
  const reports = shown.parts.map((part) => verifyDecoded(part, knowledge, checks));
  const first = reports[0]!;
  check("all parts of the file are of one hub and agree", () => checkParts(shown.parts));
  const whole = new Whole(shown.parts);
  const [one, other] = first.entries;
  const request = check("the hub's log has the query", () => whole.event(one, REQUESTS, "query.submitted"));
  const answer = check("the hub's log has the digest of the result", () => whole.event(other, RESULTS, "query.result"));
  const query = objectOf(parseCanonical(request.payload, "payload"));
  const digest = objectOf(parseCanonical(answer.payload, "payload"));
  check("the digest in the log is that of these rows, this query and this evidence", () => {
    const expected = {
      query_id: textIn(query, "query_id"),
      result_id: `r-${hex(h(utf8(`veen/query/result/${request.payload}`))).slice(0, 32)}`,
      rows_hash: hex(h(utf8(shown.rows))),
      evidence_hash: hex(h(utf8(shown.summary))),
      hub_id: hex(first.hubId),
    };
    for (const [name, value] of Object.entries(expected)) {
      if (digest[name] !== value) throw new Unverified(`${name} of the digest is not that of the file`);
    }
    const place = digest["request_receipt_id"];
    if (place !== undefined && place !== placeOf(request.entry)) throw new Unverified("the digest names another place of the query");
    if (integerIn(digest, "version") !== 1 || integerIn(digest, "row_count") !== shown.table.length) {
      throw new Unverified("the digest has another version or row_count");
    }
    if (canonical(query["evidence"] ?? null) !== canonical(digest["evidence_policy"] ?? null)) {
      throw new Unverified("the digest has another evidence policy than the query");
    }
  });
  const verified = check("the evidence belongs to this query and these rows", () => verifiedOf(query, digest, objectOf(shown.listed), shown.table));
  const own = verified.filter((each) => each.hub_id === hex(first.hubId));
  const signed = own.length === 1 ? "the receipt of the event" : `the receipts of the ${own.length} events`;
  const receipts = `the hub signed ${signed} that the service verified`;
  if (own.length > 0) check(receipts, () => whole.checkReceipts(digest, own));
  else whole.checkReceipts(digest, own);
  const result = {
    query,
    digest,
    rows: shown.table,
    request: request.entry,
    answer: answer.entry,
    askedBy: request.subject,
    receipts: own.length,
    elsewhere: verified.length - own.length,
  };
  return { ...merged(reports), result };
}

interface Recorded {
  readonly entry: Entry;
  readonly subject: string;
  readonly payload: string;
}

/** What the parts contain together. */
class Whole {
  private readonly routing: Uint8Array;
  private readonly epochs: readonly { readonly label: Uint8Array; readonly epoch: bigint }[];
  private readonly receipts: ReadonlyMap<string, Receipt>;

  constructor(parts: readonly Evidence[]) {
    this.routing = routingKey(parts[0]!.identity);
    const epochs = parts.flatMap((part) => part.checkpoints.map((one) => ({ label: one.label_curr, epoch: one.epoch })));
    this.epochs = [...new Map(epochs.map((one) => [`${hex(one.label)}/${one.epoch}`, one])).values()];
    this.receipts = new Map(parts.flatMap((part) => part.receipts.map((one) => [receiptId(one), one] as const)));
  }

  /** Whether a label is the stream's in the epoch that a signed checkpoint states. */
  isOf(label: Uint8Array, stream: string): boolean {
    const id = /^[0-9a-fA-F]{64}$/.test(stream) ? fromHex(stream)! : h(utf8(stream));
    return this.epochs.some((one) => equal(one.label, label) && equal(labelAt(this.routing, id, one.epoch), label));
  }

  /** A recorder event. Throws unless the entry is one of this type and stream. */
  event(entry: Entry | undefined, stream: string, eventType: string): Recorded {
    const found = entry?.opened && equal(entry.opened.header.schema, RECORDED) ? recordedIn(entry.opened.body) : undefined;
    if (entry && found?.event_type === eventType && this.isOf(entry.receipt.label, stream)) {
      return { entry, subject: found.subject_id, payload: found.payload };
    }
    throw new Unverified(`the file does not show the event ${eventType} on ${stream}`);
  }

  /** Throw unless the hub signed each receipt, of a stream and a place within the digest's basis. */
  checkReceipts(digest: PlainObject, verified: readonly VerifiedEvent[]): void {
    const basis = new Map(
      objectsIn(digest, "basis").map((one) => [textIn(one, "label"), { stream: textIn(one, "stream"), seq: integerIn(one, "seq") }]),
    );
    for (const { receipt_id: place, mmr_root: root } of verified) {
      const receipt = this.receipts.get(place);
      if (!receipt || hex(receipt.mmr_root) !== root) {
        throw new Unverified(`the hub's receipt ${place.slice(0, 80)} is not in the file`);
      }
      const queried = basis.get(hex(receipt.label));
      if (!queried || receipt.stream_seq > BigInt(queried.seq) || !this.isOf(receipt.label, queried.stream)) {
        throw new Unverified(`receipt ${place} is not of a stream that was queried`);
      }
    }
  }
}

function recordedIn(body: Uint8Array): ReturnType<typeof recordEvent.decode> | undefined {
  try {
    const found = recordEvent.decode(body);
    parseCanonical(found.payload, "payload");
    return found;
  } catch (error) {
    if (error instanceof Malformed) return undefined;
    throw error;
  }
}

function checkParts(parts: readonly Evidence[]): void {
  const first = parts[0]!;
  const found = new Map<string, string>();
  for (const part of parts) {
    if (!equal(part.identity.raw, first.identity.raw) || !equal(part.profile.raw, first.profile.raw)) {
      throw new Unverified("the parts are of different hubs, or of different times of one");
    }
    for (const one of part.receipts) {
      const signed = hex(one.leaf_hash) + hex(one.mmr_root);
      const known = found.get(receiptId(one)) ?? signed;
      if (part !== first && known !== signed) throw new Unverified(`two parts differ at entry ${one.stream_seq}`);
      found.set(receiptId(one), known);
    }
  }
}

interface VerifiedEvent {
  readonly receipt_id: string;
  readonly mmr_root: string;
  readonly hub_id: string;
}

/** The events that the service verified. Throws if they do not belong to this query and these rows. */
function verifiedOf(query: PlainObject, digest: PlainObject, summary: PlainObject, rows: readonly PlainObject[]): VerifiedEvent[] {
  const mode = textIn(objectOf(query["evidence"]), "mode");
  if (summary["mode"] !== mode) throw new Unverified("the evidence has another mode than the query");
  if (mode === "none") return [];
  if (["query_id", "result_id"].some((name) => summary[name] !== digest[name])) {
    throw new Unverified("the evidence belongs to another query");
  }
  const found = objectsIn(summary, "verified").map((one) => ({
    receipt_id: textIn(one, "receipt_id"),
    mmr_root: textIn(one, "mmr_root"),
    hub_id: textIn(one, "hub_id"),
  }));
  if (mode === "full" && !("aggregate" in query)) {
    const shown = rows.flatMap((row) => ("receipt_id" in row ? [row["receipt_id"]] : []));
    const isSame = shown.length === 0 || (shown.length === found.length && shown.every((one, at) => one === found[at]!.receipt_id));
    if (found.length !== rows.length || !isSame) throw new Unverified("the evidence does not belong to these rows");
  }
  return found;
}

/** The reports on all parts as one. */
function merged(reports: readonly Report[]): Report {
  const all = <T>(field: (report: Report) => readonly T[]): T[] => reports.flatMap(field);
  const missing = new Map(all((one) => one.missingWitnesses).map((key) => [hex(key), key]));
  return {
    ...reports[0]!,
    receipts: all((one) => one.receipts),
    checkpoints: all((one) => one.checkpoints),
    paths: all((one) => one.paths),
    entries: all((one) => one.entries),
    contradictions: [...new Set(all((one) => one.contradictions))],
    lost: all((one) => one.lost),
    retired: [...new Set(all((one) => one.retired))],
    conflicts: [...new Set(all((one) => one.conflicts))],
    coverage: all((one) => one.coverage),
    witnessed: all((one) => one.witnessed),
    missingWitnesses: [...missing.values()],
    cosigners: reports[0]!.cosigners.filter((key) => reports.every((one) => one.cosigners.includes(key))),
  };
}

const receiptId = (one: Receipt): string => `${hex(one.label)}:${one.stream_seq}`;
export const placeOf = (entry: Entry): string => receiptId(entry.receipt);

function rowsOf(given: string): PlainObject[] {
  const found = parseCanonical(given, "rows");
  if (!Array.isArray(found) || !found.every(isObject)) throw new Malformed("the rows are not an array of objects");
  return found;
}

function objectOf(value: Plain | undefined): PlainObject {
  if (!isObject(value)) throw new Unverified("a JSON text in the file is not an object");
  return value;
}

function objectsIn(value: PlainObject, name: string): PlainObject[] {
  const found = value[name];
  if (!Array.isArray(found)) throw new Unverified(`there is no list ${name}`);
  return found.map(objectOf);
}

function textIn(value: PlainObject, name: string): string {
  const found = value[name];
  if (typeof found !== "string") throw new Unverified(`there is no text ${name}`);
  return found;
}

function integerIn(value: PlainObject, name: string): number {
  const found = value[name];
  if (typeof found !== "number" || !Number.isSafeInteger(found)) throw new Unverified(`${name} is not an integer`);
  return found;
}
