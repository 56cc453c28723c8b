/** The tree of a log: roots, inclusion and consistency. docs/wire.md, "The tree". */
import { equal, hex, ht } from "./bytes.js";
import { Unverified } from "./errors.js";
import { type Head, isReceipt, type MmrProof, sizeOf } from "./wire.js";

export const node = (left: Uint8Array, right: Uint8Array, tag = "veen/mmr-node"): Uint8Array => ht(tag, left, right);

export function rootOf(peaks: readonly Uint8Array[], tag = "veen/mmr-root"): Uint8Array {
  return peaks.length === 1 ? peaks[0]! : ht(tag, ...peaks);
}

/** The root over the coids of a message's attachments. */
export function attachmentRoot(coids: readonly Uint8Array[]): Uint8Array {
  let peaks: Uint8Array[] = [];
  coids.forEach((coid, size) => {
    peaks = append(BigInt(size), peaks, coid, "veen/att-node");
  });
  return rootOf(peaks, "veen/att-root");
}

export function bitCount(value: bigint): number {
  let count = 0;
  for (let rest = value; rest > 0n; rest &= rest - 1n) count++;
  return count;
}

const bitLength = (value: bigint): number => (value === 0n ? 0 : value.toString(2).length);

/** The height of the perfect tree that holds the leaf, and the index of its peak among the peaks. */
export function treeOf(place: bigint, size: bigint): { height: number; rank: number } {
  const height = bitLength((place - 1n) ^ size) - 1;
  return { height, rank: bitCount(size & ((1n << BigInt(height)) - 1n)) };
}

/** The peaks after a leaf is appended to a tree. */
export function append(size: bigint, peaks: readonly Uint8Array[], leaf: Uint8Array, tag?: string): Uint8Array[] {
  const joins = bitLength(size ^ (size + 1n)) - 1;
  const joined = peaks.slice(0, joins).reduce((running, peak) => node(peak, running, tag), leaf);
  return [joined, ...peaks.slice(joins)];
}

/** One step on the way from a leaf to its peak, for the picture. */
export interface Step {
  readonly sibling: Uint8Array;
  readonly siblingIsLeft: boolean;
  readonly result: Uint8Array;
}

function climb(proof: MmrProof, place: bigint, steps = proof.path.length): Step[] {
  const climbed: Step[] = [];
  let running = proof.leaf_hash;
  proof.path.slice(0, steps).forEach((step, at) => {
    if (step.dir !== (((place - 1n) >> BigInt(at)) & 1n)) {
      throw new Unverified("a step of the proof has the wrong direction for the leaf's place");
    }
    const siblingIsLeft = step.dir === 1n;
    running = siblingIsLeft ? node(step.sib, running) : node(running, step.sib);
    climbed.push({ sibling: step.sib, siblingIsLeft, result: running });
  });
  return climbed;
}

/** The way from a leaf to a root: the steps to its peak, all peaks, and which of them is the leaf's. */
export interface Path {
  readonly leaf: Uint8Array;
  readonly steps: readonly Step[];
  readonly peaks: readonly Uint8Array[];
  readonly rank: number;
  readonly root: Uint8Array;
}

/** The root that a proof leads to. Place and size come from signed objects. Throws if the proof has another shape. */
export function pathOf(proof: MmrProof, place: bigint, size: bigint): Path {
  if (place < 1n || place > size) throw new Unverified(`stream_seq ${place} is not within 1..${size}`);
  const { height, rank } = treeOf(place, size);
  if (proof.path.length !== height) {
    throw new Unverified(`the path of the proof has ${proof.path.length} steps, expected ${height}`);
  }
  const others = bitCount(size) - 1;
  if (proof.peaks_after.length !== others) {
    throw new Unverified(`the proof has ${proof.peaks_after.length} other peaks, expected ${others}`);
  }
  const steps = climb(proof, place);
  const peak = steps.at(-1)?.result ?? proof.leaf_hash;
  const peaks = [...proof.peaks_after.slice(0, rank), peak, ...proof.peaks_after.slice(rank)];
  if (new Set(peaks.map(hex)).size !== peaks.length) throw new Unverified("the proof contains a peak twice");
  return { leaf: proof.leaf_hash, steps, peaks, rank, root: rootOf(peaks) };
}

/** Throw unless the leaf is at that place of the tree. Size and root come from a verified signature. */
export function verifyInclusion(
  proof: MmrProof,
  leaf: Uint8Array,
  place: bigint,
  size: bigint,
  root: Uint8Array,
): Path {
  const path = pathOf(proof, place, size);
  if (!equal(proof.leaf_hash, leaf)) throw new Unverified("the leaf_hash of the proof differs from the message's");
  if (!equal(path.root, root)) throw new Unverified("the root of the proof differs from the signed root");
  return path;
}

/** Throw unless the tree of `old` is a prefix of the tree with that size and root, which come from a signature. */
export function verifyPrefix(proof: MmrProof, old: Head, size: bigint, root: Uint8Array): void {
  if (isReceipt(old) && !equal(proof.leaf_hash, old.leaf_hash)) {
    throw new Unverified("the leaf_hash of the proof differs from the older receipt's");
  }
  const oldSize = sizeOf(old);
  verifyInclusion(proof, proof.leaf_hash, oldSize, size, root);
  if (!equal(oldRoot(proof, oldSize, size), old.mmr_root)) {
    throw new Unverified("the older tree is not a prefix of the newer");
  }
}

/** The root of the tree that ended with the proof's leaf. The proof must be verified for the newer size. */
export function oldRoot(proof: MmrProof, oldSize: bigint, size: bigint): Uint8Array {
  const zeros = bitLength(oldSize & -oldSize) - 1;
  const smallest = climb(proof, oldSize, zeros).at(-1)?.result ?? proof.leaf_hash;
  const passed = proof.path.slice(zeros).filter((step) => step.dir === 1n);
  const { rank } = treeOf(oldSize, size);
  return rootOf([smallest, ...passed.map((step) => step.sib), ...proof.peaks_after.slice(rank)]);
}
