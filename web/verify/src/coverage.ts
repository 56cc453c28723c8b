/**
 * Coverage: whether a signature of a retired key belongs to the log that the hub handed over.
 *
 * A thief of a retired key can state any time. A signature of a retired key is covered if a proof connects it to a
 * hand-over or to a signature of a later key. Statements that conflict convict the hub only if each of them is dated.
 */
import { equal } from "./bytes.js";
import { Unverified } from "./errors.js";
import { type HubIdentity, type Lineage, newestKey, signingKeys } from "./identity.js";
import { verifyPrefix } from "./mmr.js";
import { type Cover, verifyHandOver, verifyRow } from "./statements.js";
import { type Head, isReceipt, labelOf, type MmrProof, sizeOf, witnessesOf } from "./wire.js";

export type Coverage = "current" | "covered" | "uncovered";

/** An inclusion proof of the entry at `stream_seq` in the tree of `upto_seq` entries. */
export interface Link {
  readonly stream_seq: bigint;
  readonly upto_seq: bigint;
  readonly mmr_proof: MmrProof;
}

/** Everything in a file that shows when its statements were signed. */
export class Dating {
  private readonly validCovers = new Map<Cover, Map<HubIdentity, boolean>>();

  constructor(
    readonly lineage: Lineage,
    readonly statements: readonly Head[],
    readonly covers: readonly Cover[],
    private readonly links: readonly Link[],
    private readonly witnesses: readonly Uint8Array[],
  ) {}

  coverage(head: Head): Coverage {
    const { identity, key } = this.lineage.signer(head);
    if (key === newestKey(identity)) return "current";
    if (this.covers.some((one) => this.isCoveredBy(head, identity, one))) return "covered";
    const order = signingKeys(identity);
    const isConfirmed = this.sameLog(head).some(
      (later) => order.indexOf(this.lineage.signer(later).key) > order.indexOf(key) && this.isConnected(head, later),
    );
    return isConfirmed ? "covered" : "uncovered";
  }

  /**
   * The verdict on statements that conflict: undefined if they convict the hub, else that a key may be stolen.
   *
   * `inTree` says whether the trees of the log conflict, or something that only receipts state. `beyond` says that they
   * conflict with the hand-over of their key.
   */
  verdict(statements: readonly Head[], inTree: boolean, beyond: boolean): string | undefined {
    const undated = statements.find((head) => !this.isDated(head, inTree, beyond));
    if (!undated) return undefined;
    const when = moment(this.retiredAt(undated));
    return `contradiction under a retired key: the hub forked before ${when}, or the key was stolen`;
  }

  /** Whether the key of a statement handed over a shorter log than the statement signs. */
  isBeyond(head: Head, cover: Cover): boolean {
    const { row } = cover.proved;
    if (!equal(row.label, labelOf(head)) || sizeOf(head) <= row.size) return false;
    const { identity, key } = this.lineage.signer(head);
    const keys = signingKeys(identity);
    const until = keys.findIndex((one) => equal(one.hub_pk, cover.handover.old_pk));
    return until >= 0 && keys.indexOf(key) <= until && this.isValidCover(cover, identity);
  }

  /**
   * Whether the signature cannot have been made by a thief after the key was retired.
   *
   * Proofs and witnesses show which log existed. They do not show what else a receipt states, such as its time. They do
   * not show when the log existed or which key signed it, either: nothing in a file dates a statement beyond the
   * hand-over of its key.
   */
  isDated(head: Head, inTree: boolean, beyond: boolean): boolean {
    const coverage = this.coverage(head);
    if (coverage === "current") return true;
    if (beyond || (isReceipt(head) && !inTree)) return false;
    if (coverage === "covered" || this.isWitnessed(head)) return true;
    return this.sameLog(head).some((log) => this.isConnected(head, log) && this.isWitnessed(log));
  }

  private isWitnessed(head: Head): boolean {
    return !isReceipt(head) && witnessesOf(head, this.witnesses).length > 0;
  }

  /** The statements of the same hub for the label. */
  private sameLog(head: Head): Head[] {
    const { identity } = this.lineage.signer(head);
    return this.statements.filter(
      (other) => equal(labelOf(other), labelOf(head)) && this.lineage.signer(other).identity === identity,
    );
  }

  /** When the key of a statement was retired: at its hand-over, or else at the end that the record states. */
  private retiredAt(head: Head): bigint {
    const { key } = this.lineage.signer(head);
    const times = this.covers.filter((one) => equal(one.handover.old_pk, key.hub_pk)).map((one) => one.handover.hub_ts);
    if (key.valid_until) times.push(key.valid_until);
    return times.reduce((least, time) => (time < least ? time : least), times[0] ?? 0n);
  }

  private isCoveredBy(head: Head, identity: HubIdentity, cover: Cover): boolean {
    const { row } = cover.proved;
    if (!equal(row.label, labelOf(head)) || sizeOf(head) > row.size || !this.isValidCover(cover, identity)) return false;
    return holds(() => verifyPrefix(cover.mmr_proof, head, row.size, row.mmr_root));
  }

  private isValidCover(cover: Cover, identity: HubIdentity): boolean {
    let known = this.validCovers.get(cover);
    if (!known) this.validCovers.set(cover, (known = new Map()));
    let valid = known.get(identity);
    if (valid === undefined) {
      valid = holds(() => {
        verifyHandOver(cover.handover, identity);
        verifyRow(cover.proved, cover.handover.labels, cover.handover.rows_root);
      });
      known.set(identity, valid);
    }
    return valid;
  }

  /** Whether a later signature confirms what `head` signs. */
  private isConnected(head: Head, later: Head): boolean {
    const isSame = sizeOf(head) === sizeOf(later) && equal(head.mmr_root, later.mmr_root);
    if (!isReceipt(head)) return isSame;
    if (isReceipt(later) && sizeOf(later) === sizeOf(head)) return isSame && equal(head.leaf_hash, later.leaf_hash);
    return this.links.some(
      (link) =>
        link.stream_seq === head.stream_seq &&
        link.upto_seq === sizeOf(later) &&
        holds(() => verifyPrefix(link.mmr_proof, head, sizeOf(later), later.mmr_root)),
    );
  }
}

/** Whether a check does not throw `Unverified`. */
export function holds(check: () => void): boolean {
  try {
    check();
  } catch (error) {
    if (error instanceof Unverified) return false;
    throw error;
  }
  return true;
}

const LAST_SECOND = 253_402_300_799n; // of the year 9999

/** A time of the protocol, in UTC; the bare number if it is after the year 9999. */
export function moment(seconds: bigint): string {
  if (seconds > LAST_SECOND) return `second ${seconds}`;
  return `${new Date(Number(seconds) * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

