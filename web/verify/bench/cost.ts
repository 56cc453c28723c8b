/**
 * The cost of verifying a file, compared with the library's own checks of the same signatures in the same run.
 *
 *     node build/bench/cost.js FILE PIN
 *
 * Prints JSON: milliseconds of the fastest of several rounds of each, and their ratio. The proofs of disclosed content are
 * no signatures. They are measured by themselves, and `ratio` leaves them out.
 */
import { readFileSync } from "node:fs";

import { ed25519 } from "@noble/curves/ed25519.js";

import { fromHex } from "../src/bytes.js";
import { decode, verify } from "../src/evidence.js";
import { identityDigest, Lineage, newestKey } from "../src/identity.js";
import { verifyShared } from "../src/sealed.js";
import { headDigest, msgDigest } from "../src/wire.js";

const ROUNDS = 15;

type Signature = readonly [signature: Uint8Array, digest: Uint8Array, publicKey: Uint8Array];

/** Every signature that verification checks; for a file of a hub with one key, without hand-overs and recoveries. */
function signaturesOf(data: Uint8Array): Signature[] {
  const { identity, signature, profile, receipts, checkpoints, exhibits, origin } = decode(data);
  const line = Lineage.of(identity, origin, profile);
  const heads = [...receipts, ...checkpoints];
  return [
    [signature.sig, identityDigest(identity), newestKey(identity).hub_pk],
    ...heads.map((head): Signature => [head.hub_sig, headDigest(head), line.signer(head).key.hub_pk]),
    ...exhibits.map(({ msg }): Signature => [msg.sig, msgDigest(msg), msg.client_id]),
  ];
}

function milliseconds(run: () => void): number {
  const start = performance.now();
  run();
  return performance.now() - start;
}

const [file, pin] = process.argv.slice(2);
const data = new Uint8Array(readFileSync(file!));
const signatures = signaturesOf(data);
const bare = (): void => {
  for (const one of signatures) if (!ed25519.verify(...one, { zip215: false })) throw new Error("a signature is invalid");
};
const { exhibits } = decode(data);
const proofs = (): void => {
  for (const { msg, opening } of exhibits) {
    if (opening?.proof) verifyShared(opening.proof, msg, opening.reader_pk, opening.shared);
  }
};
const whole = (): void => void verify(data, { pin: fromHex(pin!) });
const times = { bare: Infinity, proofs: Infinity, whole: Infinity };
// Alternating rounds share what else the machine does; the fastest of each is the least disturbed.
for (let round = 0; round < ROUNDS; round++) {
  times.bare = Math.min(times.bare, milliseconds(bare));
  times.proofs = Math.min(times.proofs, milliseconds(proofs));
  times.whole = Math.min(times.whole, milliseconds(whole));
}
const ratio = (times.whole - times.proofs) / times.bare;
console.log(JSON.stringify({ signatures: signatures.length, ...times, ratio, ratio_with_proofs: times.whole / times.bare }));
