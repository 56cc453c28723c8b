/** Statements about all labels of a hub: the hand-over to another key, and the recovery of a log. */
import { compare, concat, equal, ht, u64be } from "./bytes.js";
import { isValid } from "./ed25519.js";
import { Unverified } from "./errors.js";
import { type HubIdentity, type HubKey, isIncarnation, rootKey, signingKeys } from "./identity.js";
import { bstr, intMap, list, type Of, optional, uint, version } from "./layout.js";
import { verifyInclusion } from "./mmr.js";
import { type LabelSize, mmrProof, type ProvedSize, provedSize } from "./wire.js";

export const handOver = intMap("hand-over", {
  ver: version(),
  hub_id: bstr(),
  old_pk: bstr(),
  new_pk: bstr(),
  hub_ts: uint(),
  labels: uint(),
  rows_root: bstr(),
  old_sig: bstr(64),
  new_sig: bstr(64),
  root_sig: optional(bstr(64)),
});
export type HandOver = Of<typeof handOver>;

export const cover = intMap("cover", { ver: version(), handover: handOver, proved: provedSize, mmr_proof: mmrProof });
export type Cover = Of<typeof cover>;

export const recovery = intMap("recovery", {
  ver: version(),
  hub_id: bstr(),
  old_key_id: bstr(),
  new_key_id: bstr(),
  recovered_at: uint(),
  labels: uint(),
  labels_root: bstr(),
});
export const recoveryStatement = intMap("recovery statement", {
  ver: version(),
  recovery,
  sig: bstr(64),
  endorsement: bstr(64),
  witness_sigs: optional(list(bstr(64), 64, 1)),
});
export type RecoveryStatement = Of<typeof recoveryStatement>;
export const labelRecovery = intMap("label recovery", { statement: recoveryStatement, rows: list(provedSize, 2) });
export type LabelRecovery = Of<typeof labelRecovery>;

/** The leaf of a label in the tree of a statement. */
export const rowLeaf = ({ label, size, mmr_root }: LabelSize): Uint8Array =>
  ht("veen/label-size", label, u64be(size), mmr_root);

/** Throw unless a statement with that many rows and that root contains the row. */
export function verifyRow(proved: ProvedSize, rows: bigint, root: Uint8Array): void {
  verifyInclusion(proved.mmr_proof, rowLeaf(proved.row), proved.place, rows, root);
}

/** Throw unless it is the change between two successive signing keys of that hub. */
export function verifyHandOver(found: HandOver, identity: HubIdentity): void {
  const keys = signingKeys(identity);
  const at = keys.findIndex((key) => equal(key.hub_pk, found.old_pk));
  const [before, after] = [keys[at], keys[at + 1]];
  const isChange = before && after && equal(found.hub_id, identity.hub_id) && equal(after.hub_pk, found.new_pk);
  if (!isChange) throw new Unverified("the hand-over is not between two successive keys of this hub");
  if (found.hub_ts < after.valid_from || found.hub_ts > (before.valid_until ?? found.hub_ts)) {
    throw new Unverified("the hub_ts of the hand-over is not within the time of its keys");
  }
  const digest = handOverDigest(found);
  const { old_pk, new_pk } = found;
  const signatures: [Uint8Array, Uint8Array][] = [
    [old_pk, found.old_sig],
    [new_pk, found.new_sig],
  ];
  if (found.root_sig) {
    const root = rootKey(identity);
    if (!root) throw new Unverified("the hand-over has the signature of a root, but the hub has none");
    signatures.push([root.hub_pk, found.root_sig]);
  }
  if (!signatures.every(([pk, sig]) => isValid(pk, digest, sig))) {
    throw new Unverified("a signature of the hand-over does not verify");
  }
}

export const handOverDigest = ({ hub_id, old_pk, new_pk, hub_ts, labels, rows_root }: HandOver): Uint8Array =>
  ht("veen/hand-over", concat(hub_id, old_pk, new_pk, u64be(hub_ts), u64be(labels), rows_root));

export const recoveryDigest = (said: Of<typeof recovery>): Uint8Array => ht("veen/recovery", said.raw);

/** The known witnesses that cosigned a recovery as a reset. */
export function resetWitnesses({ recovery: said, witness_sigs }: RecoveryStatement, known: readonly Uint8Array[]): Uint8Array[] {
  const digest = ht("veen/witness-reset", said.raw);
  return known.filter((pk) => (witness_sigs ?? []).some((sig) => isValid(pk, digest, sig)));
}

/** Throw unless the keys of this hub signed and endorsed the recovery. */
export function verifyRecovery({ recovery: said, sig, endorsement }: RecoveryStatement, identity: HubIdentity): void {
  if (!equal(said.hub_id, identity.hub_id)) throw new Unverified("the recovery statement is of another hub");
  const next = keyNamed(identity, said.new_key_id);
  const root = rootKey(identity);
  let endorser: HubKey;
  if (root && equal(said.old_key_id, root.key_id)) {
    if (!isIncarnation(next) || said.labels !== 0n || said.recovered_at !== next.valid_from) {
      throw new Unverified("only an incarnation begins without keys, and without entries");
    }
    endorser = root;
  } else {
    const old = keyNamed(identity, said.old_key_id);
    const order = identity.hub_keys;
    if (order.indexOf(old) >= order.indexOf(next)) {
      throw new Unverified("the new key of the recovery statement is not after the old one");
    }
    endorser = root && root.valid_from <= said.recovered_at ? root : old;
  }
  const digest = recoveryDigest(said);
  if (!isValid(next.hub_pk, digest, sig)) throw new Unverified("the recovery statement does not verify");
  if (!isValid(endorser.hub_pk, digest, endorsement)) {
    throw new Unverified("the endorsement of the recovery does not verify");
  }
}

/** The last provable size of a label. The statement must be verified; throws unless its rows show the size. */
export function recoveredSize(found: LabelRecovery, label: Uint8Array): bigint {
  const said = found.statement.recovery;
  for (const proved of found.rows) verifyRow(proved, said.labels, said.labels_root);
  const [only, second] = found.rows;
  if (only && !second && equal(only.row.label, label)) return only.row.size;
  const before = found.rows.find((proved) => compare(proved.row.label, label) < 0)?.place ?? 0n;
  const after = found.rows.find((proved) => compare(proved.row.label, label) > 0)?.place ?? said.labels + 1n;
  if (after !== before + 1n) throw new Unverified("the rows of the recovery do not show the size of this label");
  return 0n;
}

/** Whether the hub with this record began without a log. */
export function statesIncarnation(found: RecoveryStatement, identity: HubIdentity): boolean {
  const root = rootKey(identity);
  return root !== undefined && equal(found.recovery.old_key_id, root.key_id);
}

/** Whether a key signed before the recovery. Keys of a hub that this one was forked from did. */
export function replacesKey(found: LabelRecovery, identity: HubIdentity, key: HubKey): boolean {
  const next = keyNamed(identity, found.statement.recovery.new_key_id);
  const after = identity.hub_keys.slice(identity.hub_keys.indexOf(next));
  return !after.some((one) => equal(one.hub_pk, key.hub_pk));
}

function keyNamed(identity: HubIdentity, keyId: Uint8Array): HubKey {
  const found = signingKeys(identity).find((key) => equal(key.key_id, keyId));
  if (!found) throw new Unverified("the recovery statement names a key that the hub does not have");
  return found;
}
