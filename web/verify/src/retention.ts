/** What a hub signs of entries and attachments that it deleted. docs/wire.md, "Retention". */
import { equal, ht, u64be } from "./bytes.js";
import { Unverified } from "./errors.js";
import { type HubIdentity, verifyStatement } from "./identity.js";
import { bstr, intMap, list, type Of, optional, uint, version } from "./layout.js";
import { append, rootOf, verifyInclusion } from "./mmr.js";
import { mmrProof } from "./wire.js";

const MAX_CHUNKS = 1 << 20;

export const segment = intMap(
  "segment",
  {
    start_seq: uint(1n),
    end_seq: uint(1n),
    mmr_root_end: bstr(),
    entry_hashes_root: bstr(),
    total_bytes: uint(1n),
    end_ts: uint(),
    level: uint(0n, 2n),
    artifact_hash: optional(bstr()),
    pruned_at: optional(uint()),
    event_seq: optional(uint(1n)),
  },
  ({ start_seq, end_seq, level, artifact_hash, pruned_at, event_seq }) => {
    if ([artifact_hash, pruned_at, event_seq].some((one) => (one !== undefined) !== level > 0n)) {
      return "artifact_hash, pruned_at and event_seq belong to a pruned segment";
    }
    return start_seq <= end_seq ? undefined : "it ends before it starts";
  },
);
export type Segment = Of<typeof segment>;

export const manifest = intMap(
  "manifest",
  {
    ver: version(),
    hub_id: bstr(),
    label: bstr(),
    epoch: uint(),
    hub_ts: uint(),
    segments: list(segment, MAX_CHUNKS, 1),
    hub_sig: bstr(64),
  },
  ({ segments }) => {
    const isNext = (one: Segment, at: number): boolean => one.start_seq === (segments[at - 1]?.end_seq ?? 0n) + 1n;
    return segments.every(isNext) ? undefined : "the segments are not consecutive from entry 1 on";
  },
);
export type Manifest = Of<typeof manifest>;

export const tombstone = intMap(
  "tombstone",
  {
    ver: version(),
    hub_id: bstr(),
    label: bstr(),
    epoch: uint(),
    hub_ts: uint(),
    segments: uint(1n, BigInt(MAX_CHUNKS)),
    segments_root: bstr(),
    segment,
    place: uint(1n),
    mmr_proof: mmrProof,
    hub_sig: bstr(64),
  },
  (found) => (found.segment.level > 0n ? undefined : "the segment was not pruned"),
);
export type Tombstone = Of<typeof tombstone>;

export const attachmentTombstone = intMap("attachment tombstone", {
  ver: version(),
  hub_id: bstr(),
  coid: bstr(),
  pruned_at: uint(),
  event_seq: uint(1n),
  hub_sig: bstr(64),
});
export type AttachmentTombstone = Of<typeof attachmentTombstone>;

const leafOf = (row: Segment): Uint8Array => ht("veen/segment", row.raw);

/** The root over the rows of a manifest. */
export function segmentsRoot(segments: readonly Segment[]): Uint8Array {
  let peaks: Uint8Array[] = [];
  segments.forEach((row, size) => {
    peaks = append(BigInt(size), peaks, leafOf(row));
  });
  return rootOf(peaks);
}

/** Throw unless a key of that hub signed the manifest that was active at its `hub_ts`. */
export function verifyManifest(found: Manifest, identity: HubIdentity): void {
  verifySigned(found, BigInt(found.segments.length), segmentsRoot(found.segments), identity);
}

/**
 * Throw unless that hub signed that it pruned the entry: then the entry is neither lost nor damaged. A reader of the log
 * also compares `mmr_root_end` with the root that the hub signed for that size.
 */
export function verifyPruned(found: Tombstone, identity: HubIdentity, label: Uint8Array, streamSeq: bigint): void {
  const { start_seq, end_seq } = found.segment;
  if (!equal(found.label, label) || streamSeq < start_seq || streamSeq > end_seq) {
    throw new Unverified(`the tombstone is not of entry ${streamSeq} of this label`);
  }
  verifyInclusion(found.mmr_proof, leafOf(found.segment), found.place, found.segments, found.segments_root);
  verifySigned(found, found.segments, found.segments_root, identity);
}

/** Throw unless that hub signed that it deleted this attachment. */
export function verifyAttachmentPruned(found: AttachmentTombstone, identity: HubIdentity, coid: Uint8Array): void {
  if (!equal(found.hub_id, identity.hub_id) || !equal(found.coid, coid)) {
    throw new Unverified("the tombstone is of another hub or attachment");
  }
  const digest = ht("veen/attachment-pruned", found.hub_id, coid, u64be(found.pruned_at), u64be(found.event_seq));
  verifyStatement(identity, digest, found.hub_sig, found.pruned_at, "the tombstone of the attachment");
}

function verifySigned(
  { hub_id, label, epoch, hub_ts, hub_sig }: Manifest | Tombstone,
  rows: bigint,
  root: Uint8Array,
  identity: HubIdentity,
): void {
  if (!equal(hub_id, identity.hub_id)) throw new Unverified("the manifest is of another hub");
  const digest = ht("veen/manifest", hub_id, label, u64be(epoch), u64be(hub_ts), u64be(rows), root);
  verifyStatement(identity, digest, hub_sig, hub_ts, "the manifest");
}
