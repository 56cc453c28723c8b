/** The verdict on a file, and the report as JSON: the same as `veen evidence verify --json` prints of it. */
import { hex } from "./bytes.js";
import { Malformed, Unverified } from "./errors.js";
import { type Check, type Entry, type Knowledge, type Report, verify } from "./evidence.js";
import { isQueryResult, placeOf, type QueryResult, verifyResult } from "./query_result.js";
import { type Head, isReceipt, labelOf, sizeOf } from "./wire.js";

/** The exit statuses of `veen evidence verify`. */
export const STATUS = { holds: 0, malformed: 3, unverified: 4, contradicted: 11 } as const;
export type Outcome = keyof typeof STATUS;

export interface Examination {
  readonly outcome: Outcome;
  readonly verdict: string;
  readonly checks: readonly Check[];
  readonly report?: Report;
}

/** Verify a file and say in one sentence what it proves. Never throws because of the file. */
export function examine(data: Uint8Array, knowledge: Knowledge): Examination {
  const checks: Check[] = [];
  try {
    const report = isQueryResult(data) ? verifyResult(data, knowledge, checks) : verify(data, knowledge, checks);
    return { ...judge(report), checks, report };
  } catch (error) {
    if (error instanceof Malformed) {
      return { outcome: "malformed", verdict: `not valid evidence: ${error.message}`, checks };
    }
    if (error instanceof Unverified) {
      return { outcome: "unverified", verdict: `it proves nothing: ${error.message}`, checks };
    }
    throw error;
  }
}

function judge(report: Report): Pick<Examination, "outcome" | "verdict"> {
  if (!report.pinned) return { outcome: "unverified", verdict: "unverified: no hub was named" };
  if (report.contradictions.length > 0) {
    return { outcome: "contradicted", verdict: "it holds, and the hub contradicts itself" };
  }
  const [retired] = report.retired;
  if (retired !== undefined) return { outcome: "contradicted", verdict: retired };
  return { outcome: "holds", verdict: "it holds" };
}

/** JSON with integers of 64 bits. */
export type Json = string | number | bigint | boolean | null | readonly Json[] | { readonly [name: string]: Json };

export function toText(value: Json): string {
  if (typeof value === "bigint") return `${value}`;
  if (Array.isArray(value)) return `[${value.map(toText).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    const fields = Object.entries(value).map(([name, field]) => `${JSON.stringify(name)}:${toText(field)}`);
    return `{${fields.join(",")}}`;
  }
  return JSON.stringify(value);
}

export function toJson(report: Report): { readonly [name: string]: Json } {
  return {
    hub_id: hex(report.hubId),
    pinned: report.pinned,
    reader_pinned: report.readerPinned,
    writer_pinned: report.writerPinned,
    ...(report.cosigners.length > 0 ? { cosigners: report.cosigners.map(hex) } : {}),
    claim: report.claim,
    receipts: report.receipts.map(placeJson),
    checkpoints: report.checkpoints.map(placeJson),
    proofs: report.paths.map(({ streamSeq, uptoSeq }) => ({ stream_seq: streamSeq, upto_seq: uptoSeq })),
    entries: report.entries.map(entryJson),
    contradictions: report.contradictions,
    lost: report.lost.map(placeJson),
    retired: report.retired,
    conflicts: report.conflicts,
    coverage: report.coverage.map(({ head, coverage }) => ({ ...placeJson(head), coverage })),
    ...(report.result ? { query_result: resultJson(report.result) } : {}),
  };
}

function resultJson({ query, digest, rows, request, answer, askedBy, receipts, elsewhere }: QueryResult): Json {
  const places = { request: placeOf(request), result: placeOf(answer) };
  return { query, digest, rows, asked_by: askedBy, ...places, receipts, receipts_elsewhere: elsewhere };
}

function placeJson(head: Head): { readonly [name: string]: Json } {
  const place = { label: hex(labelOf(head)), mmr_root: hex(head.mmr_root) };
  if (!isReceipt(head)) return { ...place, upto_seq: sizeOf(head) };
  return { ...place, stream_seq: head.stream_seq, leaf_hash: hex(head.leaf_hash), hub_ts: head.hub_ts };
}

function entryJson(entry: Entry): Json {
  const { receipt, opened, readerPk } = entry;
  const shown = {
    label: hex(receipt.label),
    stream_seq: receipt.stream_seq,
    msg_id: hex(receipt.leaf_hash),
    hub_ts: receipt.hub_ts,
    client_id: hex(entry.clientId),
    client_seq: entry.clientSeq,
    writer: entry.writer ? hex(entry.writer) : null,
  };
  if (!opened || !readerPk) return shown;
  const content = { schema: hex(opened.header.schema), body: hex(opened.body) };
  return { ...shown, reader_pk: hex(readerPk), proved: entry.proved, ...content };
}
