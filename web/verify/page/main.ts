/** The verifier page: files, a pin, and what the evidence proves. It uses no network and no storage. */
import { counted, equal, fromHex, h, hex } from "../src/bytes.js";
import { type Card } from "../src/card.js";
import { contentOf } from "../src/content.js";
import { moment } from "../src/coverage.js";
import { type Check, type Entry, type Knowledge, type ProvedPath, type Report } from "../src/evidence.js";
import { hubIdIn } from "../src/query_result.js";
import { examine, type Examination } from "../src/report.js";
import { isReceipt, labelOf, sizeOf } from "../src/wire.js";
import { card, type Child, code, element, facts, fold, small } from "./elements.js";
import { type Dropped, read, type Unusable } from "./files.js";
import { picture } from "./picture.js";
import { resultCard, unknownOfResult } from "./result.js";

declare const VERSION: string; // set by build.mjs

const MAX_SHOWN = 50;
const KEY_DIGITS = 64;
const FEW_DIGITS = 4; // a hub id with so many wrong digits is probably mistyped

const byId = <T extends HTMLElement>(id: string): T => document.getElementById(id) as T;
const drop = byId("drop");
const fileInput = byId<HTMLInputElement>("file");
const pinInput = byId<HTMLTextAreaElement>("pin");
const readerInput = byId<HTMLTextAreaElement>("reader");
const witnessesInput = byId<HTMLTextAreaElement>("witnesses");
const result = byId("result");

interface Loaded {
  readonly name: string;
  readonly data: Uint8Array;
}
interface NamedCard {
  readonly name: string;
  readonly card: Card;
}

let loaded: Loaded | undefined; // evidence
let refusedFiles: readonly Unusable[] = []; // of the last drop, if it had files that cannot be used and no evidence
let cards: readonly NamedCard[] = []; // of the writers that must have written all entries
let notes: readonly string[] = []; // on the files of the last drop that are not used
let loading: Promise<void> = Promise.resolve();
let latest = 0; // only the newest request may change the page

/** The keys in an input, or what is wrong with one of them, which is shown below the input too. */
function keysIn(input: HTMLTextAreaElement, title: string, several: boolean): Uint8Array[] | string {
  const text = several ? input.value : input.value.replace(/\s+/g, "");
  const words = text.split(/[\s,]+/).filter((word) => word !== "");
  const problem = words.map((word) => problemOf(word, several ? "key" : "hub id")).find((one) => one !== undefined);
  input.classList.toggle("wrong", problem !== undefined);
  byId(`${input.id}-problem`).textContent = problem ?? "";
  return problem === undefined ? words.map((word) => fromHex(word)!) : `${title}: ${problem}`;
}

function problemOf(word: string, what: string): string | undefined {
  const other = /[^0-9a-f]/iu.exec(word);
  if (other) return `“${other[0]}” at position ${other.index + 1} is not a hex digit (0 to 9, a to f).`;
  const excess = word.length - KEY_DIGITS;
  if (excess === 0) return undefined;
  return `${word.length} digits were entered, ${Math.abs(excess)} too ${excess < 0 ? "few" : "many"}: a ${what} has ${KEY_DIGITS} digits.`;
}

/** Load files one batch after the other. No verdict on an earlier file stays on the page meanwhile. */
function loadAll(files: FileList | null | undefined): void {
  const batch = [...(files ?? [])];
  if (batch.length === 0) return;
  latest++;
  show(verdict("warn", "Verifying …", inWords(batch.slice(0, MAX_SHOWN).map((file) => file.name))));
  loading = loading.then(async () => {
    latest++;
    use(await Promise.all(batch.map(read)));
  });
}

function use(files: readonly Dropped[]): void {
  const evidence = files.filter((file) => file.kind === "evidence");
  const said: string[] = [];
  const [first, ...others] = evidence;
  if (first) {
    if (loaded) said.push(`${loaded.name} was replaced by ${first.name}.`);
    loaded = first;
  }
  for (const { name } of others) said.push(`${name} was not checked: this page checks one evidence file at a time. Drop it alone.`);
  for (const file of files) {
    if (file.kind === "card") {
      const isKnown = cards.some((one) => equal(one.card.raw, file.card.raw));
      if (!isKnown) cards = [...cards, file];
      else said.push(`${file.name} was already loaded.`);
    } else if (file.kind === "unusable") {
      said.push(`${file.name} is not used: ${file.why}`);
    }
  }
  refusedFiles = first ? [] : files.filter((file) => file.kind === "unusable");
  if (loaded && refusedFiles.length > 0) {
    said.push(`${loaded.name} was removed. Drop it again to see its verdict.`);
    loaded = undefined;
  }
  notes = said;
  update();
}

/** The loaded files, what they are used for, and what is not used. */
function showFiles(): void {
  const rows: Child[] = [];
  if (loaded) rows.push(element("li", "file", loaded.name, small("Evidence")));
  for (const one of cards) {
    const remove = element("button", "", "Remove");
    remove.setAttribute("aria-label", `Remove ${one.name}`);
    remove.addEventListener("click", () => {
      cards = cards.filter((other) => other !== one);
      notes = [];
      update();
    });
    rows.push(element("li", "file", one.name, small(`Card: the page checks that its owner wrote all entries. Identity ${hex(one.card.id_sign).slice(0, 16)}…`), remove));
  }
  byId("files").replaceChildren(...rows.filter((row) => row !== undefined), ...notes.slice(0, MAX_SHOWN).map((note) => element("li", "note", note)));
}

/** Verify again. The page shows that it works before a long verification starts. */
function update(): void {
  showFiles();
  const request = ++latest;
  const pins = keysIn(pinInput, "Hub id", false);
  const readers = keysIn(readerInput, "Reader key", true);
  const witnesses = keysIn(witnessesInput, "Witnesses", true);
  if (refusedFiles.length > 0) {
    show(...refusal(refusedFiles));
    return;
  }
  if (!loaded) {
    const [first] = cards;
    if (first) show(verdict("warn", "No evidence file yet", `${first.name} is a card. Now drop the .evidence file: the page checks that the owner of the card wrote its entries.`));
    else if ([pinInput, readerInput, witnessesInput].some((input) => input.value.trim() !== "")) show(verdict("warn", "No evidence file yet", "What you entered is compared with a file. Now drop the .evidence file."));
    else show();
    return;
  }
  const { name, data } = loaded;
  if (typeof pins === "string" || typeof readers === "string" || typeof witnesses === "string") {
    const wrong = [pins, readers, witnesses].filter((one) => typeof one === "string");
    show(verdict("warn", "Not verified", fileName(name), ...wrong, "Nothing was checked. Correct the field, or empty it."));
    return;
  }
  const knowledge: Knowledge = { pin: pins[0], readers, witnesses, writers: cards.map((one) => one.card) };
  show(verdict("warn", "Verifying …", name));
  setTimeout(() => {
    if (request !== latest) return;
    try {
      show(...examined(examine(data, knowledge), { name, data }, knowledge));
    } catch {
      show(verdict("bad", "Not verified", fileName(name), "The verifier failed. Do not rely on this file."));
    }
    result.dataset["done"] = String(request);
  });
}

function show(...children: Child[]): void {
  result.replaceChildren(...children.filter((child) => child !== undefined));
}

type Tone = "good" | "bad" | "warn";

function verdict(tone: Tone, text: string, ...more: Child[]): HTMLElement {
  const parts = more.map((one) => (typeof one === "string" ? element("p", "", one) : one));
  const made = element("div", `card verdict ${tone}`, element("strong", "", text), ...parts);
  made.id = "verdict";
  return made;
}

const fileName = (name: string): HTMLElement => element("p", "name", "File: ", name);

/** The verdict on files that are neither evidence nor cards. */
function refusal(files: readonly Unusable[]): Child[] {
  const [first, ...others] = files;
  const { name, why, data } = first!;
  const title = others.length === 0 ? `Not verified: ${name} is not evidence` : `Not verified: none of these ${files.length} files is evidence`;
  const reasons = files.map((file) => `${file.name}: ${file.why}`);
  return [
    verdict("bad", title, ...(others.length === 0 ? [capital(why)] : [listOf("failed", reasons)]), "Ask the sender for the .evidence file."),
    data && others.length === 0 ? fileCard({ name, data }) : undefined,
  ];
}

function examined(found: Examination, file: Loaded, knowledge: Knowledge): Child[] {
  const { report } = found;
  const judged = report ? summary(found, report, knowledge) : refused(found, file, knowledge);
  judged.querySelector("strong")!.after(fileName(file.name));
  if (!report) return [judged, checksCard(found), fileCard(file)];
  return [
    judged,
    ...problems(report),
    report.result ? resultCard(report.result, MAX_SHOWN) : undefined,
    ...report.entries.slice(0, MAX_SHOWN).map((entry) => entryCard(entry, report)),
    more(report.entries.length, "entries"),
    otherStatements(report),
    ...pathsOf(report).slice(0, MAX_SHOWN).map((path) =>
      card(`Entry ${path.streamSeq} in the signed log of ${counted(path.uptoSeq, "entry", "entries")}`, element("div", "picture", picture(path)), small(LEGEND)),
    ),
    more(pathsOf(report).length, "proofs"),
    claimCard(report),
    checksCard(found),
    hubCard(report),
    fileCard(file, report),
  ];
}

/** The paths that are drawn: of a query result only those of entries that are shown. */
function pathsOf({ paths, entries, result }: Report): readonly ProvedPath[] {
  if (!result) return paths;
  const isShown = (path: ProvedPath): boolean =>
    entries.some(({ receipt }) => receipt.stream_seq === path.streamSeq && equal(receipt.label, path.label));
  return paths.filter(isShown);
}

const LEGEND =
  "Blue: the hash of the entry, and hashes computed from it. Grey: hashes of other entries, taken from the file. Green: the root computed from them, which the hub signed.";

const more = (count: number, what: string): Child =>
  count > MAX_SHOWN ? element("p", "", `${count - MAX_SHOWN} more ${what} were verified and are not shown.`) : undefined;

const AGAIN = "Ask the sender for the file again. If it fails again, treat it as tampered with.";

function refused({ outcome, checks }: Examination, { data }: Loaded, { pin }: Knowledge): HTMLElement {
  const failure = checks.find((check) => check.failure !== undefined);
  const why = failure ? fold("Technical reason", element("p", "", `This check failed: whether ${failure.what}. Reason: ${failure.failure}.`)) : undefined;
  if (outcome === "malformed") return verdict("bad", "Not valid evidence: the file is damaged", AGAIN, why);
  switch (failure?.expectation) {
    case "hub":
      return verdict("bad", "This evidence proves nothing about the hub that you entered", ...otherHub(pin!, hubIdIn(data)), why);
    case "reader":
      return verdict("bad", "This evidence proves nothing for the reader key that you entered", "The content is not shown to be what this key opens. Compare the key with your source.", why);
    case "writer":
      return verdict("bad", "This evidence does not prove that the owners of your cards wrote it", `Loaded: ${cards.map((one) => one.name).join(", ")}. Another identity wrote an entry, or nothing shows who wrote it. A newer card of the same writer may list the missing key.`, why);
    default:
      return verdict("bad", "This evidence proves nothing", "It was changed after it was signed, or a signature in it is false.", AGAIN, why);
  }
}

function otherHub(pin: Uint8Array, hubId: Uint8Array): Child[] {
  const [entered, found] = [hex(pin), hex(hubId)];
  const different = [...entered].filter((digit, at) => digit !== found[at]).length;
  const advice =
    different <= FEW_DIGITS
      ? `They differ in ${counted(different, "digit")}: probably a typing mistake. Compare what you entered with your source, not with the file.`
      : "Another hub signed this file, or the id that you entered is wrong. Compare what you entered with your source, not with the file.";
  return [facts(["You entered", code(entered)], ["The file names", code(found)]), advice];
}

function summary({ outcome }: Examination, report: Report, knowledge: Knowledge): HTMLElement {
  const open = notEstablished(report, knowledge);
  if (!report.pinned) {
    return verdict("warn", "Unverified: no hub was named", "The file is consistent, but anyone can make a hub and sign such a file. Enter the id of the hub that must have signed it.", open);
  }
  if (outcome === "contradicted") {
    const [retired] = report.retired;
    if (report.contradictions.length === 0) {
      return verdict("bad", capital(retired ?? ""), "Every signature verifies, but some statements conflict. The file does not prove whether the hub or a thief of its retired key signed them.");
    }
    return verdict("bad", "The hub contradicts itself", "The file is valid: every signature in it verifies, and together they prove that the hub that you entered signed statements that cannot all be true.");
  }
  const count = report.entries.length;
  const since = count === 1 ? "the entry was not changed since" : count === 0 ? "no statement was changed since" : "no entry was changed since";
  const hub = `Hub ${hex(report.hubId).slice(0, 16)}…, which you entered, signed ${signed(report)}, and ${since}.`;
  const writers = report.writerPinned && report.entries.length > 0 ? `The ${cards.length === 1 ? `owner of ${cards[0]!.name}` : "owners of the cards that you loaded"} wrote ${count === 1 ? "the entry" : "all entries"}.` : undefined;
  const chosen = count === 0 ? undefined : report.result ? "The query service chose what it recorded. Nothing here proves that it is true." : "The writer chose the content. Nothing here proves that the content is true.";
  const named = knowledge.witnesses?.length ?? 0;
  const missing = report.missingWitnesses;
  if (missing.length > 0) {
    const who = named === 1 ? "The witness that you entered" : `${missing.length} of the ${named} witnesses that you entered`;
    const which = `${who} did not cosign any log in this file that contains all of its entries:`;
    return verdict("warn", "Not witnessed: the hub that you entered signed this evidence, but a cosignature is missing", which, listOf("failed", missing.map((key) => [code(hex(key))])), "Ask the sender for a file with cosigned checkpoints, or compare the key with your source. A key of the hub itself never counts.", hub, chosen, writers, open);
  }
  const seen = named > 0 ? `${named === 1 ? "The witness" : `All ${named} witnesses`} that you entered cosigned the log.` : undefined;
  return verdict("good", "This evidence is genuine: the hub that you entered signed it", chosen, hub, writers, seen, open);
}

/** What the hub signed, in words. */
function signed({ entries, receipts, checkpoints, result }: Report): string {
  if (result) {
    const events = result.receipts > 0 ? `, and the receipts of ${counted(result.receipts, "event")} behind it` : "";
    return `the entries that record this query and its result with ${counted(result.rows.length, "row")}${events}`;
  }
  if (entries.length === 0) return counted(receipts.length + checkpoints.length, "statement");
  const seqs = entries.map((entry) => entry.receipt.stream_seq);
  return entries.length <= 5 ? `${entries.length === 1 ? "entry" : "entries"} ${inWords(seqs.map(String))}` : `${entries.length} entries`;
}

const inWords = (texts: readonly string[]): string =>
  texts.length < 2 ? texts.join("") : `${texts.slice(0, -1).join(", ")} and ${texts[texts.length - 1]}`;

/** What a reader could take for proved, and is not. */
function notEstablished(report: Report, knowledge: Knowledge): Child {
  const items = [...undated(report), ...(report.entries.length > 0 ? unknownOfEntries(report, knowledge) : [])];
  if (items.length === 0) return undefined;
  const made = element("div", "open", element("h2", "", "Not established"), listOf("note", items));
  made.id = "open";
  return made;
}

/** Signatures that a thief of a retired key could have made. */
function undated({ coverage }: Report): string[] {
  const heads = coverage.filter((one) => one.coverage === "uncovered").length;
  if (heads === 0) return [];
  return [`Whether the hub made ${counted(heads, "signature")} itself: the key was retired, and nothing in the file shows that it signed before that. A thief of the key could have signed later.`];
}

function unknownOfEntries(report: Report, knowledge: Knowledge): string[] {
  const { entries } = report;
  const opened = entries.filter((entry) => entry.opened);
  const items = report.result ? unknownOfResult(report.result) : absent(report);
  if (opened.some((entry) => !entry.proved)) {
    items.push("The content of some entries: the file has no proof of it, so writer and sender together could have invented it.");
  } else if (opened.length > 0 && !report.readerPinned) {
    items.push("Whether the readers of the stream received this content: it is proved only for the reader key in the file. Enter the reader key of the stream, from a source that you trust, to check that.");
  }
  items.push("The exact time: all times are from the hub's own clock.");
  if (report.writerPinned) items.push("The name of the writer: a card contains keys and no name. Only the source of the card can tell you whose it is.");
  else if (entries.some((entry) => entry.writer)) items.push("Who holds the writer's identity key: a card in the file shows the key, but not whose it is. Get the writer's card from a source that you trust, and drop it here too.");
  else if (report.result) items.push("Who the query service is: the file shows only its key. Get the card of the service from a source that you trust, and drop it here too.");
  else items.push("Who the writer is: the file shows only a key. Get the writer's card from a source that you trust, and drop it here too.");
  if (!knowledge.witnesses?.length) items.push("Whether the hub shows everyone the same log: only witnesses can confirm that, and you entered none.");
  if (report.claim) items.push("The text of the sender, shown below as “what the sender claims”.");
  return items;
}

/** Which entries of the signed logs are not in the file, and which are without content. */
function absent({ entries, receipts, checkpoints }: Report): string[] {
  const said: string[] = [];
  const labels = new Map(entries.map((entry) => [hex(entry.receipt.label), entry.receipt.label]));
  for (const [name, label] of labels) {
    const which = labels.size === 1 ? "this log" : `log ${name.slice(0, 16)}…`;
    const sizes = [...receipts, ...checkpoints].filter((head) => equal(labelOf(head), label)).map(sizeOf);
    const size = sizes.reduce((most, one) => (one > most ? one : most), 0n);
    const shown = entries.filter((entry) => equal(entry.receipt.label, label)).map((entry) => entry.receipt.stream_seq);
    const gaps: string[] = [];
    let next = 1n;
    for (const seq of [...shown.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0)), size + 1n]) {
      if (seq > next) gaps.push(seq === next + 1n ? `${next}` : `${next} to ${seq - 1n}`);
      if (seq >= next) next = seq + 1n;
    }
    if (gaps.length > 0) {
      const listed = gaps.length > 10 ? [...gaps.slice(0, 9), `${gaps.length - 9} more ranges`] : gaps;
      const isOne = gaps.length === 1 && !gaps[0]!.includes(" ");
      said.push(`${isOne ? "Entry" : "Entries"} ${inWords(listed)} of ${which} ${isOne ? "is" : "are"} not in this file; the sender chose what to include.`);
    }
    said.push(`Later entries: the file says nothing about ${which} after entry ${size}.`);
  }
  const sealed = entries.filter((entry) => !entry.opened).length;
  if (sealed > 0) said.push(`The content of ${counted(sealed, "sealed entry", "sealed entries")}: the file does not show it.`);
  return said;
}

function claimCard({ claim }: Report): Child {
  if (!claim) return undefined;
  const made = card("Not verified: what the sender claims", element("pre", "", claim), small("The sender of the file wrote this text. No check depends on it."));
  made.classList.add("warn");
  made.id = "claim";
  return made;
}

const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

function problems(report: Report): Child[] {
  const lists: [string, readonly string[]][] = [
    ["How the hub contradicts itself", report.contradictions],
    ["What conflicts under a retired key", report.conflicts],
    ["Entries that the hub states to have lost", report.lost.map((one) => `entry ${one.stream_seq}, signed ${moment(one.hub_ts)}`)],
  ];
  return lists.map(([title, texts]) => (texts.length > 0 ? card(title, listOf("note", texts)) : undefined));
}

function listOf(className: string, rows: readonly (string | readonly Child[])[]): HTMLElement {
  const rest = rows.length - MAX_SHOWN;
  const items = rows.slice(0, MAX_SHOWN).map((row) => element("li", className, ...(typeof row === "string" ? [row] : row)));
  return element("ul", "", ...items, rest > 0 ? element("li", className, `and ${rest} more`) : undefined);
}

function entryCard(entry: Entry, report: Report): HTMLElement {
  const { receipt, opened, readerPk } = entry;
  const coverage = report.coverage.find((one) => one.head === receipt)?.coverage;
  const rows: (readonly [string, ...Child[]])[] = [
    ["What", ...what(entry)],
    ["Written by", ...who(entry, report)],
    ["Recorded by the hub", element("strong", "", moment(receipt.hub_ts)), small("According to the hub's own clock.")],
    ["Where", `entry ${receipt.stream_seq} of log `, code(hex(receipt.label))],
    ["Hub", code(hex(report.hubId)), report.pinned ? small("The hub that you entered.") : small("Taken from the file: not verified.")],
  ];
  if (coverage === "uncovered") {
    rows.push(["Note", "The key of this signature was retired, and nothing in the file shows that it signed before that."]);
  }
  if (opened && readerPk) rows.push(["Content check", ...contentCheck(entry, report, hex(readerPk))]);
  return card(titleOf(entry, report), facts(...rows));
}

function titleOf(entry: Entry, { result }: Report): string {
  const title = `Entry ${entry.receipt.stream_seq}`;
  if (entry === result?.request) return `${title}: the query, as the service recorded it`;
  return entry === result?.answer ? `${title}: the digest of the result, as the service recorded it` : title;
}

function who({ writer, clientId, clientSeq }: Entry, report: Report): Child[] {
  const key = ["Signing key ", code(hex(clientId)), small(`The holder of this key signed this message and numbered it ${clientSeq}.${writer ? "" : " The file does not say who that is."}`)];
  if (!writer) return key;
  const own = report.writerPinned ? cards.find((one) => equal(one.card.id_sign, writer)) : undefined;
  const source = own
    ? `The owner of ${own.name}, the card that you loaded.`
    : "A card in the file proves that this identity has the signing key below. It does not prove whose identity it is.";
  return ["Identity ", code(hex(writer)), small(source), ...key];
}

function what({ opened }: Entry): Child[] {
  if (!opened) return ["Sealed: the file proves that the entry exists, but does not show its content."];
  const { schema, isKnownSchema, fields, text, hex: digits, attachments } = contentOf(opened);
  const shown = fields
    ? facts(...fields.map(([name, value]) => [name, value] as const))
    : element("pre", "", text ?? digits ?? "");
  const kind = isKnownSchema ? `Schema ${schema}` : `Unknown schema ${schema}`;
  const form = digits === undefined ? "" : digits === "" ? ", empty" : ", bytes in hex";
  const files = attachments.map((one) => small(`Attachment ${one.name}, ${one.size} bytes, ${hex(one.coid)}`));
  const chosen = fields ? ". The writer chose these fields and values" : "";
  return [shown, small(`${kind}${form}${chosen}`), ...files.slice(0, MAX_SHOWN)];
}

function contentCheck(entry: Entry, report: Report, key: string): Child[] {
  if (report.readerPinned) return ["Proved for the reader key that you entered."];
  if (entry.proved) return ["Proved for this reader key: ", code(key), small("The file names this key. If the stream has another one, writer and sender together could have invented the content.")];
  return ["Not proved: writer and sender together could have invented the content. Reader key in the file: ", code(key)];
}

/** Receipts and checkpoints that belong to no shown entry. */
function otherStatements(report: Report): Child {
  const shown = new Set(report.entries.map((entry) => entry.receipt));
  const others = report.coverage.filter(({ head }) => !(isReceipt(head) && shown.has(head)));
  if (others.length === 0) return undefined;
  const rows = others.map(({ head, coverage }) => {
    const about = isReceipt(head) ? `receipt of entry ${sizeOf(head)}, ${moment(head.hub_ts)}` : `root of the log up to entry ${sizeOf(head)}`;
    const witnesses = report.witnessed.find((one) => one.checkpoint === head)?.witnesses.length ?? 0;
    const seen = witnesses > 0 ? `, cosigned by ${witnesses} of your witnesses` : "";
    return [`${about}: `, code(hex(head.mmr_root)), `${seen}${coverage === "current" ? "" : ` (retired key, ${coverage})`}`];
  });
  return card("Other statements that the hub signed", listOf("passed", rows));
}

function checksCard({ checks, report }: Examination): HTMLElement {
  const failed = checks.filter((check) => check.failure !== undefined);
  const passed = checks.length - failed.length;
  const list = element("ul", "");
  for (const check of checks.slice(0, 4 * MAX_SHOWN)) {
    const { failure } = check;
    list.append(element("li", failure === undefined ? "passed" : "failed", failure === undefined ? capital(check.what) : `Failed: whether ${check.what}`, failure === undefined ? undefined : element("em", "", failure)));
  }
  if (checks.length > 4 * MAX_SHOWN) list.append(element("li", "passed", `and ${checks.length - 4 * MAX_SHOWN} more`));
  if (report && !report.pinned) list.append(element("li", "skipped", "Not checked: whether the hub is the one that you expect. You entered no hub id."));
  for (const key of report?.missingWitnesses ?? []) list.append(element("li", "failed", "Failed: whether the witness cosigned a log that contains all entries of this file", element("em", "", `there is no such signature by ${hex(key)}`)));
  if (!report) list.append(element("li", "skipped", "The checks after it were not made."));
  const made = card(checksTitle(passed, failed, report), list);
  made.id = "checks";
  return made;
}

function checksTitle(passed: number, failed: readonly Check[], report: Report | undefined): string {
  const count = counted(passed, "check");
  if (failed.length > 0) return `${count} passed, then one failed`;
  if (!report?.pinned) return `The file agrees with itself in ${count}, but its hub was not checked`;
  return report.missingWitnesses.length > 0 ? `${count} passed, but witnesses are missing` : `All ${passed} checks passed`;
}

/** The keys of the hub. A tick stands only at keys that signed receipts here: their times are checked against the period. */
function hubCard(report: Report): HTMLElement {
  const keys = report.identity.hub_keys.slice(-MAX_SHOWN).map((key) => {
    const until = key.valid_until === undefined ? "no end stated" : `until ${moment(key.valid_until)}`;
    const times = report.coverage.flatMap((one) => (isReceipt(one.head) && equal(one.key.hub_pk, key.hub_pk) ? [one.head.hub_ts] : []));
    const isLast = key.valid_until === undefined ? " Not verified: whether the key was retired later." : "";
    const role = key.role === undefined ? "signing key" : key.role === "root" ? "root key" : "signing key of a new incarnation";
    const made = element("li", times.length > 0 ? "passed" : "skipped", `${role} `, code(hex(key.hub_pk)), `, from ${moment(key.valid_from)}, ${until}`);
    made.append(small(`${usedAt(times)}${isLast}`));
    return made;
  });
  return card("The hub", facts(["Hub id", code(hex(report.hubId))], ["Keys, as the hub lists them", element("ul", "keys", ...keys)]));
}

function usedAt(times: readonly bigint[]): string {
  if (times.length === 0) return "It signed no receipt in this file.";
  const [first, last] = [times.reduce((one, other) => (other < one ? other : one)), times.reduce((one, other) => (other > one ? other : one))];
  const when = first === last ? `at ${moment(first)}` : `from ${moment(first)} to ${moment(last)}`;
  return `It signed ${counted(times.length, "receipt")} in this file ${when}, within this period.`;
}

/** What was checked, when and with which verifier, for a printed copy. */
function fileCard({ name, data }: Loaded, report?: Report): HTMLElement {
  const checked = moment(BigInt(Math.floor(Date.now() / 1000)));
  return card(
    "The file and this check",
    facts(
      ["File", name, small(counted(data.length, "byte"))],
      ["SHA-256", code(hex(h(data)))],
      report ? ["Made", moment(report.madeAt), small("According to the file. Not verified.")] : undefined,
      ["Checked", checked, small("According to the clock of this computer.")],
      ["Verifier", `veen-verify ${VERSION}`],
    ),
  );
}

fileInput.addEventListener("change", () => {
  loadAll(fileInput.files);
  fileInput.value = ""; // so that the same file can be chosen again
});
for (const input of [pinInput, readerInput, witnessesInput]) input.addEventListener("input", update);
for (const name of ["dragenter", "dragover"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
document.addEventListener("dragleave", () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  loadAll(event.dataTransfer?.files);
});
