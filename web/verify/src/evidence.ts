/** Evidence files: the layout, and every check that a file must pass. docs/wire.md, "Evidence". */
import { counted, equal, hex, short } from "./bytes.js";
import { type Card, card, writersOf } from "./card.js";
import { type Coverage, Dating } from "./coverage.js";
import { Malformed, Unverified } from "./errors.js";
import {
  beginsAfter,
  follows,
  forkOrigin,
  type HubIdentity,
  hubIdentity,
  type HubKey,
  identitySignature,
  isOtherIncarnation,
  isPinned,
  keyHistory,
  Lineage,
  verifyChain,
  verifyIdentity,
  verifyIdentitySignature,
} from "./identity.js";
import { bstr, constant, intMap, list, type Of, optional, text, uint, version } from "./layout.js";
import { append, bitCount, type Path, pathOf, rootOf } from "./mmr.js";
import type { QueryResult } from "./query_result.js";
import { type Opened, openSealed, verifyShared } from "./sealed.js";
import {
  cover,
  labelRecovery,
  recoveredSize,
  replacesKey,
  statesIncarnation,
  verifyRecovery,
} from "./statements.js";
import {
  type Checkpoint,
  checkpoint,
  type Head,
  isReceipt,
  labelOf,
  leafHash,
  mmrProof,
  msg,
  profile,
  profileId,
  type Receipt,
  receipt,
  sharedProof,
  sizeOf,
  verifyMsg,
  witnessesOf,
} from "./wire.js";

export const MAX_EVIDENCE_BYTES = 1 << 26;
const MAX_ITEMS = 1000;

const opening = intMap("opening", { reader_pk: bstr(), shared: bstr(), proof: optional(sharedProof) });
const exhibit = intMap("exhibit", { stream_seq: uint(1n), msg, opening: optional(opening) });
const tie = intMap("tie", { label: bstr(), stream_seq: uint(1n), upto_seq: uint(1n), mmr_proof: mmrProof });
const peaks = intMap("peaks", { label: bstr(), size: uint(1n), peaks: list(bstr(), 64) });

export const evidence = intMap("evidence", {
  kind: constant("veen.evidence.v1"),
  ver: version(),
  claim: text(),
  made_at: uint(),
  identity: hubIdentity,
  signature: identitySignature,
  profile,
  receipts: list(receipt, MAX_ITEMS),
  checkpoints: list(checkpoint, MAX_ITEMS),
  ties: list(tie, MAX_ITEMS),
  peaks: list(peaks, MAX_ITEMS),
  exhibits: list(exhibit, MAX_ITEMS),
  origin: optional(forkOrigin),
  rival: optional(keyHistory),
  recovery: optional(labelRecovery),
  covers: optional(list(cover, MAX_ITEMS)),
  writers: optional(list(card, MAX_ITEMS)),
});
export type Evidence = Of<typeof evidence>;
export type Exhibit = Of<typeof exhibit>;

/** What a verifier knows besides the file. */
export interface Knowledge {
  /** The id of the hub that must have signed, or the fingerprint of one of its keys. */
  readonly pin?: Uint8Array | undefined;
  /** The public keys of the streams: all disclosed content must be proved to be what one of them opens. */
  readonly readers?: readonly Uint8Array[];
  readonly witnesses?: readonly Uint8Array[];
  /** How many of the witnesses must have cosigned a log with each entry. Without it, missing ones are only reported. */
  readonly threshold?: number | undefined;
  /** The hub's identity record from another source, which may be newer than the one in the file. */
  readonly record?: HubIdentity | undefined;
  /** The cards of the identities that must have written all entries. */
  readonly writers?: readonly Card[];
}

/** A message with its receipt, and its content if it was disclosed. */
export interface Entry {
  readonly receipt: Receipt;
  readonly clientId: Uint8Array;
  readonly clientSeq: bigint;
  readonly opened: Opened | undefined;
  readonly readerPk: Uint8Array | undefined;
  /** False: only the author of the file claims that the reader key opens it to this content. */
  readonly proved: boolean;
  /** The identity that wrote it, if a card proves it: its id_sign. */
  readonly writer: Uint8Array | undefined;
}

/** The way from an entry to a root that the hub signed. */
export interface ProvedPath {
  readonly label: Uint8Array;
  readonly streamSeq: bigint;
  readonly uptoSeq: bigint;
  readonly path: Path;
}

/** The verified content of a file. */
export interface Report {
  readonly hubId: Uint8Array;
  readonly pinned: boolean;
  readonly readerPinned: boolean;
  readonly writerPinned: boolean;
  readonly claim: string;
  readonly madeAt: bigint;
  readonly identity: HubIdentity;
  readonly receipts: readonly Receipt[];
  readonly checkpoints: readonly Checkpoint[];
  readonly paths: readonly ProvedPath[];
  readonly entries: readonly Entry[];
  /** What proves that the hub contradicted itself. */
  readonly contradictions: readonly string[];
  /** Receipts for entries that the hub states to have lost. */
  readonly lost: readonly Receipt[];
  /** Verdicts on conflicts for which a thief of a retired key may be responsible, and the conflicts. */
  readonly retired: readonly string[];
  readonly conflicts: readonly string[];
  readonly coverage: readonly { readonly head: Head; readonly coverage: Coverage; readonly key: HubKey }[];
  /** The checkpoints that named witnesses signed, with these witnesses. */
  readonly witnessed: readonly { readonly checkpoint: Checkpoint; readonly witnesses: readonly Uint8Array[] }[];
  /** The named witnesses that did not cosign a log with every entry of the file. They do not change the outcome. */
  readonly missingWitnesses: readonly Uint8Array[];
  /** With a threshold, the witnesses that cosigned a log with each entry. */
  readonly cosigners: readonly Uint8Array[];
  /** The query result that the file proves, if it is one. */
  readonly result?: QueryResult;
}

/** One check: what was checked, and why it failed, if it did. */
export interface Check {
  readonly what: string;
  readonly failure?: string;
  /** Which expectation of the verifier was checked, if the check is not about the file alone. */
  readonly expectation?: Expectation | undefined;
}
export type Expectation = "hub" | "reader" | "writer" | "witness";

/** Statements that an honest hub does not sign together, and why. */
interface Conflict {
  readonly text: string;
  readonly statements: readonly Head[];
  /** False if only the times of receipts conflict, which no tree contains. */
  readonly inTree?: boolean;
  /** True if the statement conflicts with the hand-over of its key. */
  readonly beyond?: boolean;
}

/**
 * Verify a file. Throws `Malformed` or `Unverified` if any part of it does not verify. `checks` receives each check in
 * the order of docs/wire.md; the first failure is the last of them.
 */
export function verify(data: Uint8Array, knowledge: Knowledge = {}, checks: Check[] = []): Report {
  const shown = checker(checks)("the file is well-formed and not truncated", () => decode(data));
  return verifyDecoded(shown, knowledge, checks);
}

/** Run checks and add each to `checks`, with its failure. */
export function checker(checks: Check[]): Checker {
  return (what, run, expectation) => {
    try {
      const result = run();
      checks.push({ what, expectation });
      return result;
    } catch (error) {
      checks.push({ what, expectation, failure: error instanceof Error ? error.message : String(error) });
      throw error;
    }
  };
}

/** Like `verify`, of a file that is decoded already. */
export function verifyDecoded(shown: Evidence, knowledge: Knowledge, checks: Check[]): Report {
  const check = checker(checks);
  const { identity } = shown;
  check(knowledge.pin ? "the hub id in the file is the one that was entered" : "the file names a hub", () => {
    if (!isPinned(identity, knowledge.pin ?? identity.hub_id)) throw new Unverified("it is not the hub that was entered");
  }, knowledge.pin ? "hub" : undefined);
  const keys = identity.hub_keys.length;
  const chain = keys === 1 ? "the hub id is the hash of the hub's key" : `the hub id is the hash of the first of the hub's ${keys} keys, and each later one is endorsed`;
  check(chain, () => verifyChain(identity));
  check("the hub's newest key signed the list of its keys", () => verifyIdentitySignature(identity, shown.signature));
  const origin = shown.origin || identity.origin ? "the record of the hub that this hub continues is complete" : "the hub's identity record names no hub as its origin";
  const line = check(origin, () => Lineage.of(newer(identity, knowledge.record), shown.origin, shown.profile));
  const signed: Head[] = [...shown.receipts, ...shown.checkpoints];
  const heads = new Heads();
  for (const head of signed) {
    const what = isReceipt(head) ? `the hub signed the receipt of entry` : `the hub signed the root of the log up to entry`;
    check(`${what} ${sizeOf(head)}`, () => line.signer(head));
    heads.add(head);
  }
  const paths = shown.ties.map((one) =>
    check(`entry ${one.stream_seq} is in the signed log of ${counted(one.upto_seq, "entry", "entries")}`, () => provedPath(one, heads)),
  );
  checkDisclosed(shown.exhibits, knowledge.readers ?? [], check);
  const owners = knowledge.writers ?? [];
  const cards = [...owners, ...(shown.writers ?? [])];
  const writers = cards.length > 0 ? check("each card is signed by its owner", () => writersOf(cards)) : NO_WRITERS;
  const entries = shown.exhibits.map((one) => entryOf(one, shown, writers, check));
  if (owners.length > 0) {
    check("the owners of the cards that were entered wrote all entries", () => checkWriters(entries, owners), "writer");
  }
  const named = distinct(knowledge.witnesses ?? []);
  const own = ownKeys(line, knowledge.record);
  const witnesses = named.filter((key) => !own.has(hex(key)));
  const dating = new Dating(line, signed, shown.covers ?? [], shown.ties, witnesses);
  const witnessed = shown.checkpoints
    .map((one) => ({ checkpoint: one, witnesses: witnessesOf(one, witnesses) }))
    .filter((one) => one.witnesses.length > 0);
  const growth = shown.peaks.length > 0 ? check("the shown peaks belong to signed roots", () => badGrowth(shown, heads, dating)) : badGrowth(shown, heads, dating);
  const found = [
    ...twoStories(heads),
    ...growth,
    ...repeats(shown.receipts),
    ...badTimes(shown.receipts),
    ...disorder(entries),
    ...beyondHandOver(dating),
  ].map(({ text, statements, inTree, beyond }) => ({ text, retired: dating.verdict(statements, inTree ?? true, beyond ?? false) }));
  const histories = shown.rival
    ? check("the second list of the hub's keys is signed", () => twoKeyHistories(shown))
    : [];
  // Statements that contradict each other convict the hub without any witness.
  const threshold = found.length + histories.length > 0 ? undefined : knowledge.threshold;
  const cosigners = threshold === undefined
    ? []
    : check(`${threshold} of ${counted(named.length, "witness", "witnesses")} cosigned a log with each entry`, () => cosignersOf(shown, named, threshold, witnessed), "witness");
  const lost = shown.recovery ? check("the statement of a recovery is signed", () => lostEntries(shown, line)) : [];
  return {
    hubId: identity.hub_id,
    pinned: knowledge.pin !== undefined,
    readerPinned: (knowledge.readers ?? []).length > 0,
    writerPinned: owners.length > 0,
    claim: shown.claim,
    madeAt: shown.made_at,
    identity,
    receipts: shown.receipts,
    checkpoints: shown.checkpoints,
    paths,
    entries,
    contradictions: unique([...histories, ...found.filter((one) => !one.retired).map((one) => one.text)]),
    lost,
    retired: unique(found.flatMap((one) => one.retired ?? [])),
    conflicts: unique(found.filter((one) => one.retired).map((one) => one.text)),
    coverage: signed.map((head) => ({ head, coverage: dating.coverage(head), key: line.signer(head).key })),
    witnessed,
    missingWitnesses: missingWitnesses(shown, named, witnessed),
    cosigners,
  };
}

/** The keys of the hub, of its origins and of a known incarnation. None of them is ever a witness (001, KEX0.1). */
function ownKeys({ identities }: Lineage, known: HubIdentity | undefined): ReadonlySet<string> {
  const isOwn = known && equal(known.hub_id, identities[0]!.hub_id);
  return new Set([...identities, ...(isOwn ? [known] : [])].flatMap((one) => one.hub_keys.map((key) => hex(key.hub_pk))));
}

/** Whether the file connects an entry with the log that a checkpoint signs. */
function isInLog({ ties }: Evidence): (one: Receipt, log: Checkpoint) => boolean {
  const linked = new Set(ties.map((one) => `${placeKey(one.label, one.stream_seq)}/${one.upto_seq}`));
  return (one, log) =>
    equal(log.label_curr, one.label) &&
    (linked.has(`${placeKey(one.label, one.stream_seq)}/${log.upto_seq}`) ||
      (log.upto_seq === one.stream_seq && equal(log.mmr_root, one.mmr_root)));
}

/** The witnesses that did not cosign a log with every receipt. */
function missingWitnesses(shown: Evidence, named: readonly Uint8Array[], witnessed: Report["witnessed"]): Uint8Array[] {
  const contains = isInLog(shown);
  return named.filter((witness) => {
    const logs = witnessed.filter((one) => one.witnesses.includes(witness)).map((one) => one.checkpoint);
    return logs.length === 0 || !shown.receipts.every((one) => logs.some((log) => contains(one, log)));
  });
}

/** The witnesses of every receipt. Throws unless enough witnesses cosigned a log with each of them. */
function cosignersOf(
  shown: Evidence,
  named: readonly Uint8Array[],
  threshold: number,
  witnessed: Report["witnessed"],
): Uint8Array[] {
  const contains = isInLog(shown);
  const isSame = (one: Checkpoint, other: Checkpoint): boolean =>
    equal(one.label_curr, other.label_curr) && one.upto_seq === other.upto_seq && equal(one.mmr_root, other.mmr_root);
  const logs = witnessed
    .map(({ checkpoint: log }) => ({ log, signers: new Set(witnessed.filter((one) => isSame(one.checkpoint, log)).flatMap((one) => one.witnesses)) }))
    .filter(({ signers }) => signers.size >= threshold);
  if (logs.length === 0 && shown.checkpoints.length > 0) throw new Unverified("not enough witnesses cosigned a log of the file");
  const signersOf = shown.receipts.map((one) => {
    const found = logs.filter(({ log }) => contains(one, log));
    if (found.length === 0) throw new Unverified(`no log with entry ${one.stream_seq} was cosigned by enough witnesses`);
    return new Set(found.flatMap(({ signers }) => [...signers]));
  });
  // Without entries, the witnesses of each log that enough witnesses cosigned.
  const all = shown.receipts.length > 0 ? signersOf : logs.map(({ signers }) => signers);
  return all.length === 0 ? [] : named.filter((key) => all.every((signers) => signers.has(key)));
}

type Checker = <T>(what: string, run: () => T, expectation?: Expectation) => T;

export function decode(data: Uint8Array): Evidence {
  if (data.length > MAX_EVIDENCE_BYTES) throw new Malformed(`${data.length} bytes, above ${MAX_EVIDENCE_BYTES}`);
  return evidence.decode(data);
}

const distinct = (keys: readonly Uint8Array[]): Uint8Array[] => [...new Map(keys.map((key) => [hex(key), key])).values()];
const unique = (texts: readonly string[]): string[] => [...new Set(texts)];
const numeric = (a: bigint, b: bigint): number => (a < b ? -1 : a > b ? 1 : 0);

/** The signed statements by label and size of the tree. */
class Heads {
  private readonly bySize = new Map<string, Head[]>();

  add(head: Head): void {
    const key = placeKey(labelOf(head), sizeOf(head));
    const known = this.bySize.get(key);
    if (known) known.push(head);
    else this.bySize.set(key, [head]);
  }

  at(label: Uint8Array, size: bigint): readonly Head[] {
    return this.bySize.get(placeKey(label, size)) ?? [];
  }

  groups(): Iterable<readonly Head[]> {
    return this.bySize.values();
  }
}

const placeKey = (label: Uint8Array, size: bigint): string => `${hex(label)}/${size}`;

/** The longer of two records of one incarnation. Throws if neither continues the other. */
function newer(shown: HubIdentity, known: HubIdentity | undefined): HubIdentity {
  if (!known || !equal(known.hub_id, shown.hub_id) || isOtherIncarnation(known, shown)) return shown;
  const [older, longer] = shown.hub_keys.length <= known.hub_keys.length ? [shown, known] : [known, shown];
  if (!follows(longer, older)) throw new Unverified("the identity record does not continue the one that is known");
  return longer;
}

/** Throw unless the proof connects a receipt in this file with a signed root in this file. */
function provedPath(found: Of<typeof tie>, heads: Heads): ProvedPath {
  const { label, stream_seq, upto_seq, mmr_proof } = found;
  const isLeaf = heads.at(label, stream_seq).some((head) => isReceipt(head) && equal(head.leaf_hash, mmr_proof.leaf_hash));
  const path = pathOf(mmr_proof, stream_seq, upto_seq);
  if (!isLeaf || !heads.at(label, upto_seq).some((head) => equal(head.mmr_root, path.root))) {
    throw new Unverified(`the proof of entry ${stream_seq} does not connect a receipt with a signed root`);
  }
  return { label, streamSeq: stream_seq, uptoSeq: upto_seq, path };
}

/** A message has one content; with `readers`, the content that one of these keys opens. */
function checkDisclosed(exhibits: readonly Exhibit[], readers: readonly Uint8Array[], check: Checker): void {
  const disclosed = new Map<string, string>();
  for (const { stream_seq, msg: message, opening: shown } of exhibits) {
    if (!shown) continue;
    const where = `entry ${stream_seq}`;
    const leaf = hex(leafHash(message));
    const secret = hex(shown.reader_pk) + hex(shown.shared);
    const known = disclosed.get(leaf) ?? secret;
    disclosed.set(leaf, known);
    if (known !== secret) {
      check(`${where} is disclosed with one secret`, () => {
        throw new Unverified(`${where} is disclosed twice, with different secrets`);
      });
    }
    if (readers.length === 0) continue;
    check(`${where} is disclosed for ${readers.length === 1 ? "the" : "a"} reader key that was entered`, () => {
      if (!readers.some((reader) => equal(shown.reader_pk, reader))) {
        throw new Unverified(`${where} is opened by ${short(shown.reader_pk)}, not by the reader key that was entered`);
      }
      if (!shown.proof) throw new Unverified(`${where} has no proof that the reader key that was entered opens it`);
    }, "reader");
  }
}

const NO_WRITERS: ReadonlyMap<string, Uint8Array> = new Map();

/** Throw unless the named identities wrote all entries. */
function checkWriters(entries: readonly Entry[], named: readonly Card[]): void {
  for (const { writer, clientId, receipt: { stream_seq } } of entries) {
    if (writer && named.some((one) => equal(one.id_sign, writer))) continue;
    const why = writer ? "belongs to another identity" : "is on no confirmed card of a named writer";
    throw new Unverified(`entry ${stream_seq}: client_id ${short(clientId)} ${why}`);
  }
}

function entryOf(
  found: Exhibit,
  shown: Evidence,
  writers: ReadonlyMap<string, Uint8Array>,
  check: Checker,
): Entry {
  const { msg: message, opening: secret, stream_seq } = found;
  const where = `entry ${stream_seq}`;
  const bound = check(`the receipt of ${where}, which the hub signed, is for this message`, () => {
    if (!equal(message.profile_id, profileId(shown.profile))) {
      throw new Unverified(`the message at ${where} has another profile`);
    }
    const leaf = leafHash(message);
    const one = shown.receipts.find((it) => it.stream_seq === stream_seq && equal(it.leaf_hash, leaf));
    if (!one) throw new Unverified(`the message at ${where} has no receipt in this file`);
    if (!equal(one.label, message.label)) throw new Unverified("the label of the receipt differs from the message's");
    return one;
  });
  check(`the writer signed the message of ${where}, and its content is unchanged`, () => verifyMsg(message));
  const writer = writers.get(hex(message.client_id));
  const entry = { receipt: bound, clientId: message.client_id, clientSeq: message.client_seq, writer };
  if (!secret) return { ...entry, opened: undefined, readerPk: undefined, proved: false };
  const { proof } = secret;
  if (proof) {
    check(`the secret for ${where} belongs to its reader key`, () =>
      verifyShared(proof, message, secret.reader_pk, secret.shared),
    );
  }
  const opened = check(`this secret opens ${where}`, () =>
    openSealed(message, message.ciphertext, secret.reader_pk, secret.shared),
  );
  return { ...entry, opened, readerPk: secret.reader_pk, proved: proof !== undefined };
}

/** Two signed identity records of the hub, neither of which continues the other. */
function twoKeyHistories({ identity, rival }: Evidence): string[] {
  if (!rival) return [];
  verifyIdentity(rival.identity, rival.signature, identity.hub_id);
  const other = rival.identity;
  if (isOtherIncarnation(other, identity) || follows(identity, other) || follows(other, identity)) return [];
  return ["the hub's keys signed two identity records, and neither continues the other"];
}

/** The receipts of keys before a recovery for entries beyond it. */
function lostEntries({ identity, rival, recovery, receipts }: Evidence, line: Lineage): Receipt[] {
  if (!recovery || receipts.length === 0) return [];
  const later = rival && beginsAfter(rival.identity, identity) ? rival.identity : undefined;
  verifyRecovery(recovery.statement, later ?? identity);
  return receipts.filter((one) => {
    const size = recoveredSize(recovery, one.label);
    if (one.stream_seq <= size) return false;
    return later ? statesIncarnation(recovery.statement, later) : replacesKey(recovery, identity, line.signer(one).key);
  });
}

function twoStories(heads: Heads): Conflict[] {
  const found: Conflict[] = [];
  for (const signed of heads.groups()) {
    for (const [one, other] of pairs(signed)) {
      const where = `entry ${sizeOf(one)} of label ${short(labelOf(one))}`;
      if (isReceipt(one) && isReceipt(other) && !equal(one.leaf_hash, other.leaf_hash)) {
        found.push({ text: `two different messages are signed as ${where}`, statements: [one, other] });
      }
      if (!equal(one.mmr_root, other.mmr_root)) {
        const text = `two different roots are signed for the log that ends with ${where}`;
        found.push({ text, statements: [one, other] });
      }
    }
  }
  return found;
}

function* pairs<T>(items: readonly T[]): Generator<[T, T]> {
  for (let i = 0; i < items.length; i++) for (let j = i + 1; j < items.length; j++) yield [items[i]!, items[j]!];
}

/** Roots that do not follow from the signed root before them. Throws if peaks do not belong to a signed root. */
function badGrowth(shown: Evidence, heads: Heads, dating: Dating): Conflict[] {
  const known = new Map(shown.peaks.map((one) => [placeKey(one.label, one.size), one]));
  const follows = new Map<string, Head>(); // the statement of each root with peaks; one that is dated, if any is
  for (const [place, { label, size, peaks: tops }] of known) {
    const root = tops.length === bitCount(size) ? rootOf(tops) : undefined;
    const signed = root ? heads.at(label, size).filter((head) => equal(head.mmr_root, root)) : [];
    const statement = signed.find((head) => dating.isDated(head, true, false)) ?? signed[0];
    if (!statement) throw new Unverified(`the peaks for ${counted(size, "entry", "entries")} do not match a signed root`);
    follows.set(place, statement);
  }
  const found: Conflict[] = [];
  for (const one of shown.receipts) {
    const before = one.stream_seq - 1n;
    const place = placeKey(one.label, before);
    const tops = before ? known.get(place)?.peaks : [];
    if (!tops || equal(rootOf(append(before, tops, one.leaf_hash)), one.mmr_root)) continue;
    const where = `entry ${one.stream_seq} of label ${short(one.label)}`;
    const text = `the root signed for ${where} does not follow from the log before it`;
    const statement = follows.get(place);
    found.push({ text, statements: statement ? [statement, one] : [one] });
  }
  return found;
}

/** One message at two places. */
function repeats(receipts: readonly Receipt[]): Conflict[] {
  const byPlace = [...receipts].sort((a, b) => numeric(a.stream_seq, b.stream_seq));
  const found: Conflict[] = [];
  for (const [one, other] of pairs(byPlace)) {
    if (one.stream_seq === other.stream_seq || !equal(one.leaf_hash, other.leaf_hash)) continue;
    const text = `one message is signed as entry ${one.stream_seq} and as entry ${other.stream_seq}`;
    found.push({ text, statements: [one, other] });
  }
  return found;
}

/** Signed times that decrease along a label, or differ for one entry. */
function badTimes(receipts: readonly Receipt[]): Conflict[] {
  const found: Conflict[] = [];
  const latest = new Map<string, Receipt>();
  for (const later of [...receipts].sort((a, b) => numeric(a.stream_seq, b.stream_seq))) {
    const key = hex(later.label);
    const before = latest.get(key) ?? later;
    const clash = timeClash(before, later);
    if (!clash) latest.set(key, later);
    else found.push({ text: `${clash}, of label ${short(later.label)}`, statements: [before, later], inTree: false });
  }
  return found;
}

function timeClash(one: Receipt, later: Receipt): string | undefined {
  if (one.stream_seq === later.stream_seq) {
    if (one.hub_ts === later.hub_ts) return undefined;
    return `entry ${later.stream_seq} is signed with two times, hub_ts ${one.hub_ts} and ${later.hub_ts}`;
  }
  if (later.hub_ts >= one.hub_ts) return undefined;
  return `hub_ts goes back from ${one.hub_ts} to ${later.hub_ts}, from entry ${one.stream_seq} to entry ${later.stream_seq}`;
}

/** Messages of a client that are not in the order of their client_seq. */
function disorder(entries: readonly Entry[]): Conflict[] {
  const byPlace = [...entries].sort((a, b) => numeric(a.receipt.stream_seq, b.receipt.stream_seq));
  const found: Conflict[] = [];
  for (const [one, other] of pairs(byPlace)) {
    if (!equal(one.receipt.label, other.receipt.label) || !equal(one.clientId, other.clientId)) continue;
    const [first, second] = [one.receipt.stream_seq, other.receipt.stream_seq];
    if (first === second || other.clientSeq > one.clientSeq) continue;
    const text = `client_seq ${other.clientSeq} is entry ${second}, after ${one.clientSeq} at entry ${first}`;
    found.push({ text, statements: [one.receipt, other.receipt] });
  }
  return found;
}

/** Statements for a longer log than the one that their key handed over. */
function beyondHandOver(dating: Dating): Conflict[] {
  const found: Conflict[] = [];
  for (const head of dating.statements) {
    for (const one of dating.covers) {
      if (!dating.isBeyond(head, one)) continue;
      const text = `entry ${sizeOf(head)} of label ${short(labelOf(head))} is signed`;
      found.push({ text: `${text}, but the key handed over only ${counted(one.proved.row.size, "entry", "entries")}`, statements: [head], beyond: true });
    }
  }
  return found;
}

