#!/usr/bin/env node
/** `veen-verify FILE --pin ID`: verify an evidence file offline. The exit statuses are those of `veen evidence verify`. */
import { readFileSync, statSync } from "node:fs";
import { parseArgs } from "node:util";

import { counted, fromHex, hex } from "./bytes.js";
import { type Card, card, verifyCard } from "./card.js";
import { contentJson, contentOf } from "./content.js";
import { moment } from "./coverage.js";
import { Malformed, Unverified } from "./errors.js";
import { type Knowledge, MAX_EVIDENCE_BYTES, type Report } from "./evidence.js";
import { examine, type Json, STATUS, toJson, toText } from "./report.js";
import type { Opened } from "./sealed.js";

const USAGE = "usage: veen-verify FILE --pin HUB_ID [--reader PUBLIC_KEY]… [--writer CARD]… [--witness PUBLIC_KEY]… [--threshold N] [--json]";

class Misuse extends Error {}

function key(option: string, value: string | undefined): Uint8Array | undefined {
  if (value === undefined) return undefined;
  const found = fromHex(value.trim());
  if (found?.length !== 32) throw new Misuse(`--${option} ${value} is not 64 hex digits`);
  return found;
}

/** How many of the named witnesses must have cosigned. */
function threshold(value: string | undefined, witnesses: readonly Uint8Array[]): number | undefined {
  if (value === undefined) return undefined;
  const most = new Set(witnesses.map(hex)).size;
  const found = /^[0-9]{1,4}$/.test(value) ? Number(value) : 0;
  if (found < 1 || found > most) throw new Misuse(`--threshold ${value} is not a number from 1 to ${most}, the witnesses that --witness names`);
  return found;
}

/** A card from a file. It must prove whose client_ids it lists. */
function confirmedCard(file: string): Card {
  const found = card.decode(readFileSync(file));
  verifyCard(found);
  if (!found.confirmations) throw new Unverified(`${file}: its client_ids do not confirm it; ask its owner for a new card`);
  return found;
}

function main(): number {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      pin: { type: "string" },
      reader: { type: "string", multiple: true },
      writer: { type: "string", multiple: true },
      witness: { type: "string", multiple: true },
      threshold: { type: "string" },
      json: { type: "boolean" },
      help: { type: "boolean" },
    },
  });
  if (values.help) {
    console.log(USAGE);
    return 0;
  }
  const [file, ...others] = positionals;
  if (file === undefined || others.length > 0) throw new Misuse("give one evidence file");
  const witnesses = (values.witness ?? []).map((one) => key("witness", one)!);
  const knowledge: Knowledge = {
    pin: key("pin", values.pin),
    readers: (values.reader ?? []).map((one) => key("reader", one)!),
    writers: (values.writer ?? []).map(confirmedCard),
    witnesses,
    threshold: threshold(values.threshold, witnesses),
  };
  const size = statSync(file).size;
  if (size > MAX_EVIDENCE_BYTES) throw new Misuse(`${file} has ${size} bytes; evidence has at most ${MAX_EVIDENCE_BYTES}`);
  const { verdict, outcome, report, checks } = examine(readFileSync(file), knowledge);
  if (values.json) {
    const failed = checks.find((one) => one.failure !== undefined)?.what ?? null;
    console.log(toText({ verdict, failed, ...(report ? json(report) : {}) }));
  } else {
    for (const line of lines(verdict, report)) console.log(line);
  }
  return STATUS[outcome];
}

function lines(verdict: string, report: Report | undefined): string[] {
  const shown = [`verdict     ${printable(verdict)}`];
  if (!report) return shown;
  shown.push(`hub_id      ${hex(report.hubId)}`);
  if (report.claim) shown.push(`claim       ${printable(report.claim)} (not verified)`);
  for (const text of [...report.contradictions, ...report.conflicts]) shown.push(`conflict    ${text}`);
  for (const { receipt, clientId, opened, writer } of report.entries) {
    const who = writer ? `writer ${hex(writer)}` : `client_id ${hex(clientId)}`;
    const where = `entry ${receipt.stream_seq}  ${moment(receipt.hub_ts)}  ${who}`;
    shown.push(`${where}  ${opened ? content(opened) : "(sealed)"}`);
  }
  for (const one of report.cosigners) shown.push(`cosigned    by witness ${hex(one)}`);
  for (const one of report.checkpoints) shown.push(`checkpoint  ${one.upto_seq}  root ${hex(one.mmr_root)}`);
  return shown;
}

/** The report, with the content of disclosed entries decoded by their schemas. */
function json(report: Report): { readonly [name: string]: Json } {
  const shown = toJson(report);
  const entries = report.entries.map(({ opened }, at) => ({
    ...(shown.entries as { readonly [name: string]: Json }[])[at]!,
    ...(opened ? contentJson(opened) : {}),
  }));
  return { ...shown, entries };
}

function content(opened: Opened): string {
  const { schema, isKnownSchema, fields, text, hex: digits, attachments } = contentOf(opened);
  const body = fields ? fields.map(([name, value]) => `${name}=${value}`).join(" ") : (text ?? `0x${digits}`);
  const named = fields ? `${schema} ${body}` : isKnownSchema ? body : `${body}  schema ${schema.slice(0, 16)}…`;
  return printable([named, ...attachments.map(({ name, size }) => `${name} (${counted(size, "byte")})`)].join(" + "));
}

/** Text from a file without control characters, which a terminal would interpret. */
function printable(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu, "\ufffd");
}

try {
  process.exitCode = main();
} catch (error) {
  if (!(error instanceof Error)) throw error;
  const isMisuse = error instanceof Misuse || (error as NodeJS.ErrnoException).code?.startsWith("ERR_PARSE_ARGS");
  const isFile = typeof (error as NodeJS.ErrnoException).syscall === "string";
  const isCard = error instanceof Malformed || error instanceof Unverified;
  if (!isMisuse && !isFile && !isCard) throw error;
  console.error(`veen-verify: error: ${error.message}`);
  if (isMisuse) console.error(USAGE);
  process.exitCode = isMisuse ? 2 : isFile ? 6 : error instanceof Malformed ? 3 : 4;
}
