/** Every vector file of the core: valid objects decode and verify, and the others are refused with the stated fault. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { x25519 } from "@noble/curves/ed25519.js";

import { h, hex, ht, u64be, utf8 } from "../src/bytes.js";
import { isValid } from "../src/ed25519.js";
import { Malformed, Unverified } from "../src/errors.js";
import {
  hubId,
  type HubIdentity,
  identityDigest,
  type IdentitySignature,
  isPinned,
  keyId,
  newestKey,
  routingKey,
  signerOf,
  signingKeys,
  verifyChain,
  verifyIdentitySignature,
} from "../src/identity.js";
import { readIdentityFile } from "../src/identity_file.js";
import { append, attachmentRoot, oldRoot, rootOf, verifyInclusion, verifyPrefix } from "../src/mmr.js";
import * as retention from "../src/retention.js";
import { aad, bodyNonce, openSealed, partsOf } from "../src/sealed.js";
import * as statements from "../src/statements.js";
import * as wire from "../src/wire.js";
import { LAYOUTS } from "./layouts.js";
import { bin, faultOf, type Vectors, vectors } from "./vector_files.js";

test("hashes, names, the profile and small trees have their known values", () => {
  const known = vectors("known-answers");
  for (const { tag, data, hash } of known.hashes) {
    assert.equal(hex(tag === null ? h(bin(data)) : ht(tag, bin(data))), hash);
  }
  const { label, routing_key, stream_id, epoch } = known.label;
  assert.equal(hex(wire.labelAt(bin(routing_key), bin(stream_id), BigInt(epoch))), label);
  assert.equal(hex(u64be(BigInt(epoch))), known.label.epoch_u64be);
  assert.equal(hex(wire.profileId(wire.profile.decode(bin(known.profile.cbor)))), known.profile.profile_id);
  for (const [tag, id] of Object.entries(known.realm_streams.by_tag)) {
    assert.equal(hex(ht(tag, bin(known.realm_streams.realm_id))), id);
  }
  for (const [name, id] of Object.entries(known.schema_ids)) assert.equal(hex(h(utf8(name))), id);
  for (const { leaf_bytes, roots } of known.mmr) {
    let peaks: Uint8Array[] = [];
    leaf_bytes.forEach((byte: string, size: number) => {
      peaks = append(BigInt(size), peaks, bin(byte.repeat(32)));
      assert.equal(hex(rootOf(peaks)), roots[size]);
    });
  }
});

test("every malformed encoding is refused with its fault", () => {
  let cases = 0;
  for (const { object, valid, malformed } of vectors("malformed").objects) {
    const layout = LAYOUTS[object];
    assert.ok(layout, `no layout for ${object}`);
    const sound = bin(valid);
    assert.deepEqual(layout.decode(sound).raw, sound);
    for (const { at, insert, remove, fault, name } of malformed) {
      const damaged = bin(valid.slice(0, 2 * at) + insert + valid.slice(2 * (at + remove)));
      assert.equal(faultOf(() => layout.decode(damaged)), fault, `${object}: ${name}`);
      cases++;
    }
  }
  assert.ok(cases > 1000, `${cases} cases`);
});

test("trees, inclusion proofs and consistency proofs hold, and the invalid ones are refused", () => {
  const { leaves, trees, inclusion, consistency, refused_inclusion, refused_consistency, empty_root } = vectors("mmr");
  assert.equal(hex(rootOf([])), empty_root);
  let peaks: Uint8Array[] = [];
  trees.forEach((tree: Vectors, at: number) => {
    peaks = append(BigInt(at), peaks, bin(leaves[at]));
    assert.deepEqual(peaks.map(hex), tree.peaks);
    assert.equal(hex(rootOf(peaks)), tree.mmr_root);
  });
  const include = (one: Vectors): unknown => {
    const proof = wire.mmrProof.decode(bin(one.cbor));
    const leaf = bin(one.leaf_hash ?? leaves[one.stream_seq - 1]);
    return verifyInclusion(proof, leaf, BigInt(one.stream_seq), BigInt(one.size), bin(one.mmr_root));
  };
  for (const one of inclusion) include(one);
  for (const one of refused_inclusion) assert.throws(() => include(one), Unverified, one.name);
  const extend = (one: Vectors): void => {
    const [oldSize, newSize] = [BigInt(one.old_size), BigInt(one.new_size)];
    const proof = wire.mmrProof.decode(bin(one.cbor));
    if (oldSize > newSize) throw new Unverified("the older tree is longer");
    verifyInclusion(proof, proof.leaf_hash, oldSize, newSize, bin(one.new_root));
    if (hex(oldRoot(proof, oldSize, newSize)) !== one.old_root) throw new Unverified("not a prefix");
  };
  for (const one of consistency) extend(one);
  for (const one of refused_consistency) assert.throws(() => extend(one), Unverified, one.name);
});

test("sealed payloads open, and the others are refused with their fault", () => {
  const { sealed, refused, reader, client, label, empty_att_root } = vectors("ciphertext");
  assert.equal(hex(attachmentRoot([])), empty_att_root);
  const secret = bin(reader.secret);
  const place = (one: Vectors): Parameters<typeof openSealed>[0] => ({
    profile_id: bin(one.profile_id),
    label: bin(label),
    client_id: bin(client.public_key),
    client_seq: BigInt(one.client_seq),
    prev_ack: BigInt(one.prev_ack),
    auth_ref: one.auth_ref === null ? null : bin(one.auth_ref),
  });
  const open = (one: Vectors): ReturnType<typeof openSealed> => {
    const ciphertext = bin(one.ciphertext);
    partsOf(ciphertext);
    let shared: Uint8Array;
    try {
      shared = x25519.getSharedSecret(secret, ciphertext.subarray(0, 32));
    } catch {
      throw new Malformed("enc has small order");
    }
    return openSealed(place(one), ciphertext, bin(reader.public_key), shared);
  };
  for (const one of sealed) {
    assert.equal(hex(aad(place(one))), one.aad);
    assert.equal(hex(bodyNonce(place(one))), one.nonce);
    const { header, body } = open(one);
    assert.equal(hex(header.raw), one.payload_hdr_cbor);
    assert.equal(hex(body), one.body);
    const message = wire.msg.decode(bin(one.msg));
    wire.verifyMsg(message);
    assert.equal(hex(wire.leafHash(message)), one.leaf_hash);
    if (one.payload_hdr.att_root) {
      const coids = one.attachments.map((part: Vectors) => bin(part.coid));
      assert.equal(hex(attachmentRoot(coids)), one.payload_hdr.att_root);
    }
  }
  for (const one of refused) assert.equal(faultOf(() => open(one)), one.fault, one.name);
});

test("capability tokens and presentations verify, and the others are refused", () => {
  const { tokens, malformed, unverified, presentations, unverified_presentations } = vectors("captoken");
  for (const { cbor, auth_ref } of tokens) {
    wire.verifyToken(wire.capToken.decode(bin(cbor)));
    assert.equal(hex(ht("veen/cap", bin(cbor))), auth_ref);
  }
  for (const { cbor, fault, name } of malformed) assert.equal(faultOf(() => wire.capToken.decode(bin(cbor))), fault, name);
  for (const { cbor, name } of unverified) {
    assert.equal(faultOf(() => wire.verifyToken(wire.capToken.decode(bin(cbor)))), "UNVERIFIED", name);
  }
  const hub = bin(presentations[0].hub_id);
  for (const { cbor } of presentations) wire.verifyPresentation(wire.capPresentation.decode(bin(cbor)), hub);
  for (const { cbor, name } of unverified_presentations) {
    const check = (): void => wire.verifyPresentation(wire.capPresentation.decode(bin(cbor)), hub);
    assert.equal(faultOf(check), "UNVERIFIED", name);
  }
});

test("upload proofs verify, and the others are refused", () => {
  const { proofs, refused, hub_id, subject } = vectors("upload");
  const check = ({ cbor, coid, hub_id: other, subject_pk, label }: Vectors): void =>
    wire.verifyUpload(
      wire.uploadProof.decode(bin(cbor)),
      bin(other ?? hub_id),
      bin(coid),
      bin(subject_pk ?? subject.public_key),
      bin(label ?? ""),
    );
  for (const one of proofs) check(one);
  for (const one of refused) assert.equal(faultOf(() => check(one)), "UNVERIFIED", one.name);
});

test("identity records verify at every time, with and without a root, and the others are refused", () => {
  const { records, records_with_a_root, unverified_records, unverified_signatures, profile, ...signed } = vectors("identity");
  for (const one of [...records, ...records_with_a_root]) {
    const identity = readIdentityFile(utf8(one.hub_identity_json));
    verifyChain(identity);
    verifyIdentitySignature(identity, signatureOf(one.hub_identity_sig));
    assert.equal(hex(identityDigest(identity)), one.digest);
    assert.equal(hex(hubId(identity.hub_keys[0]!.hub_pk)), one.hub_id ?? signed.hub_id);
    for (const pin of one.pins) assert.ok(isPinned(identity, bin(pin)));
    assert.ok(!isPinned(identity, new Uint8Array(32)));
    assert.deepEqual(
      Object.fromEntries(signingKeys(identity).map((key) => [hex(keyId(key.hub_pk)), hex(key.hub_pk)])),
      JSON.parse(one.hub_key_map),
    );
  }
  for (const { hub_identity_json, name } of unverified_records) {
    const check = (): void => verifyChain(readIdentityFile(utf8(hub_identity_json)));
    assert.notEqual(faultOf(check), "none", name);
  }
  for (const { hub_identity_json, hub_identity_sig, name } of unverified_signatures) {
    const identity = readIdentityFile(utf8(hub_identity_json));
    assert.equal(faultOf(() => verifyIdentitySignature(identity, signatureOf(hub_identity_sig))), "UNVERIFIED", name);
  }
  const newest = readIdentityFile(utf8(records.at(-1).hub_identity_json));
  const epochs = wire.profile.decode(bin(profile.cbor));
  for (const { cbor, verifies } of signed.receipts) {
    assert.equal(signerOf(newest, wire.receipt.decode(bin(cbor)), epochs) !== undefined, verifies);
  }
  for (const { cbor, verifies } of signed.checkpoints) {
    assert.equal(signerOf(newest, wire.checkpoint.decode(bin(cbor)), epochs) !== undefined, verifies);
  }
});

function signatureOf(json: string): IdentitySignature {
  const { key_id, sig } = JSON.parse(json);
  return { key_id: bin(key_id), sig: bin(sig), raw: new Uint8Array(0) };
}

test("a change of any byte of an identity record is refused", () => {
  const text = utf8(vectors("identity").records.at(-1).hub_identity_json);
  const sound = readIdentityFile(text);
  const signature = signatureOf(vectors("identity").records.at(-1).hub_identity_sig);
  for (let at = 0; at < text.length; at++) {
    const changed = text.slice();
    changed[at]! ^= 1;
    const check = (): void => {
      const identity: HubIdentity = readIdentityFile(changed);
      verifyChain(identity);
      verifyIdentitySignature(identity, signature);
    };
    assert.notEqual(faultOf(check), "none", `byte ${at}`);
  }
  assert.equal(newestKey(sound).valid_until, undefined);
  assert.equal(hex(routingKey(sound)), hex(ht("veen/routing_key", sound.hub_id)));
});

for (const name of ["a", "b", "c", "d"]) {
  test(`scenario ${name}: messages, receipts, roots and proofs of the hub verify`, () => {
    const { steps, hub, logs, ...more } = vectors(`scenario-${name}`);
    const trees = new Map<string, Uint8Array[]>();
    let accepted = 0;
    for (const { msg, accepted: answer } of steps) {
      if (!answer?.receipt) continue;
      accepted++;
      const message = wire.msg.decode(bin(msg));
      wire.verifyMsg(message);
      const receipt = wire.receipt.decode(bin(answer.receipt));
      assert.ok(isValid(bin(hub.public_key), wire.headDigest(receipt), receipt.hub_sig));
      assert.equal(hex(wire.leafHash(message)), hex(receipt.leaf_hash));
      const size = receipt.stream_seq;
      const peaks = append(size - 1n, trees.get(hex(receipt.label)) ?? [], receipt.leaf_hash);
      trees.set(hex(receipt.label), peaks);
      assert.deepEqual(peaks.map(hex), answer.peaks);
      assert.equal(hex(rootOf(peaks)), hex(receipt.mmr_root));
      verifyInclusion(wire.mmrProof.decode(bin(answer.mmr_proof)), receipt.leaf_hash, size, size, receipt.mmr_root);
    }
    assert.ok(accepted > 5);
    for (const { leaves, proofs, size, mmr_root } of logs) {
      proofs.forEach((proof: string, at: number) => {
        verifyInclusion(wire.mmrProof.decode(bin(proof)), bin(leaves[at]), BigInt(at + 1), BigInt(size), bin(mmr_root));
      });
    }
    for (const token of Object.values<Vectors>(more.tokens ?? {})) {
      assert.equal(hex(ht("veen/cap", bin(token.cbor))), token.auth_ref);
    }
  });
}

test("checkpoints verify with their witnesses, and those with other labels are refused", () => {
  const { checkpoints, invalid_checkpoints, hub, profile, stream_id, witnesses } = vectors("scenario-c");
  const epochs = wire.profile.decode(bin(profile.cbor));
  const known = Object.values<Vectors>(witnesses).map((one) => bin(one.public_key));
  const check = (cbor: string): wire.Checkpoint => {
    const found = wire.checkpoint.decode(bin(cbor));
    if (!isValid(bin(hub.public_key), wire.headDigest(found), found.hub_sig)) throw new Unverified("signature");
    wire.checkLabels(found, epochs, bin(hub.routing_key), bin(stream_id));
    return found;
  };
  for (const { cbor, signing_digest, witness_sigs, proofs, upto_seq } of checkpoints) {
    const found = check(cbor);
    assert.equal(hex(wire.headDigest(found)), signing_digest);
    assert.equal(wire.witnessesOf(found, known).length, witness_sigs?.length ?? 0);
    assert.deepEqual(wire.witnessesOf(found, [bin(hub.public_key)]), []);
    proofs.forEach((proof: string, at: number) => {
      const decoded = wire.mmrProof.decode(bin(proof));
      verifyInclusion(decoded, decoded.leaf_hash, BigInt(at + 1), BigInt(upto_seq), found.mmr_root);
      if (at + 1 === upto_seq) verifyPrefix(decoded, found, BigInt(upto_seq), found.mmr_root);
    });
  }
  for (const { cbor, note } of invalid_checkpoints) assert.equal(faultOf(() => check(cbor)), "UNVERIFIED", note);
});

test("hand-overs and recoveries verify with their rows and witnesses, and the others are refused", () => {
  const { identities, rows, proofs, keys, ...found } = vectors("statements");
  const hubs = new Map<string, HubIdentity>(
    identities.map((one: Vectors) => [one.name, readIdentityFile(utf8(one.hub_identity_json))]),
  );
  const leaves: Uint8Array[] = rows.map(({ cbor, leaf_hash }: Vectors) => {
    const leaf = statements.rowLeaf(wire.labelSize.decode(bin(cbor)));
    assert.equal(hex(leaf), leaf_hash);
    return leaf;
  });
  const rootOfRows = (count: number): string =>
    hex(rootOf(leaves.slice(0, count).reduce<Uint8Array[]>((peaks, leaf, size) => append(BigInt(size), peaks, leaf), [])));
  for (const { cbor, labels, rows_root } of proofs) {
    assert.equal(rootOfRows(labels), rows_root);
    statements.verifyRow(wire.provedSize.decode(bin(cbor)), BigInt(labels), bin(rows_root));
  }
  for (const { cbor, identity, digest, labels, rows_root, name } of found.handovers) {
    const made = statements.handOver.decode(bin(cbor));
    statements.verifyHandOver(made, hubs.get(identity)!);
    assert.equal(hex(statements.handOverDigest(made)), digest, name);
    assert.equal(rootOfRows(labels), rows_root, name);
  }
  for (const { cbor, identity, name } of found.unverified_handovers) {
    const check = (): void => statements.verifyHandOver(statements.handOver.decode(bin(cbor)), hubs.get(identity)!);
    assert.equal(faultOf(check), "UNVERIFIED", name);
  }
  const witnesses = Object.keys(keys).filter((name) => name.startsWith("witness-")).map((name) => bin(keys[name].public_key));
  for (const { cbor, identity, digest, labels, labels_root, witnesses: cosigned, name } of found.recoveries) {
    const made = statements.recoveryStatement.decode(bin(cbor));
    statements.verifyRecovery(made, hubs.get(identity)!);
    assert.equal(hex(statements.recoveryDigest(made.recovery)), digest, name);
    assert.equal(rootOfRows(labels), labels_root, name);
    assert.equal(statements.resetWitnesses(made, witnesses).length, cosigned, name);
    assert.deepEqual(statements.resetWitnesses(made, [bin(keys.hub.public_key), bin(keys.mallory.public_key)]), [], name);
    assert.equal(statements.statesIncarnation(made, hubs.get(identity)!), identity === "incarnation", name);
  }
  for (const { cbor, identity, name } of found.unverified_recoveries) {
    const check = (): void => statements.verifyRecovery(statements.recoveryStatement.decode(bin(cbor)), hubs.get(identity)!);
    assert.equal(faultOf(check), "UNVERIFIED", name);
  }
  assert.ok(found.recoveries.some((one: Vectors) => one.witnesses === 2));
});

test("manifests and tombstones verify for the entries that were pruned only, and the others are refused", () => {
  const { hub_identity_json, manifest, segments, tombstones, attachment_tombstone, coid, refused } = vectors("retention");
  const hub = readIdentityFile(utf8(hub_identity_json));
  const whole = retention.manifest.decode(bin(manifest.cbor));
  retention.verifyManifest(whole, hub);
  assert.equal(hex(retention.segmentsRoot(whole.segments)), manifest.segments_root);
  assert.deepEqual(whole.segments.map((row) => hex(row.raw)), segments.map((row: Vectors) => row.cbor));
  const { label } = whole;
  for (const { cbor, place } of tombstones) {
    const stone = retention.tombstone.decode(bin(cbor));
    const { start_seq, end_seq } = whole.segments[place - 1]!;
    const check = (of: Uint8Array, seq: bigint): string => faultOf(() => retention.verifyPruned(stone, hub, of, seq));
    for (const seq of [start_seq, end_seq]) assert.equal(check(label, seq), "none");
    for (const seq of [start_seq - 1n, end_seq + 1n]) assert.equal(check(label, seq), "UNVERIFIED");
    assert.equal(check(bin(coid), start_seq), "UNVERIFIED");
  }
  const gone = retention.attachmentTombstone.decode(bin(attachment_tombstone));
  retention.verifyAttachmentPruned(gone, hub, bin(coid));
  assert.equal(faultOf(() => retention.verifyAttachmentPruned(gone, hub, label)), "UNVERIFIED");
  const checks: Record<string, (data: Uint8Array) => void> = {
    manifest: (data) => retention.verifyManifest(retention.manifest.decode(data), hub),
    tombstone: (data) => {
      const stone = retention.tombstone.decode(data);
      retention.verifyPruned(stone, hub, stone.label, stone.segment.start_seq);
    },
    "attachment tombstone": (data) => retention.verifyAttachmentPruned(retention.attachmentTombstone.decode(data), hub, bin(coid)),
  };
  for (const { kind, cbor, name } of refused) assert.equal(faultOf(() => checks[kind]!(bin(cbor))), "UNVERIFIED", name);
});
