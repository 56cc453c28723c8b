/**
 * The cost of verifying a file, compared with the library's own checks of the same signatures in the same run.
 *
 *     node build/bench/cost.js FILE PIN
 *
 * Each round measures both, in alternating order, and starts without key tables of earlier work. Prints JSON: for each of
 * the rounds the milliseconds of CPU time and the ratios, and their medians. The proofs of disclosed content are no signatures. They
 * are measured by themselves, and `ratio` leaves them out; `ratio_with_proofs` does not.
 */
import { readFileSync } from "node:fs";

import { ed25519 } from "@noble/curves/ed25519.js";

import { fromHex } from "../src/bytes.js";
import { forgetKeys } from "../src/ed25519.js";
import { decode, verify } from "../src/evidence.js";
import { identityDigest, Lineage, newestKey } from "../src/identity.js";
import { verifyShared } from "../src/sealed.js";
import { headDigest, msgDigest } from "../src/wire.js";

const WARM_UP = 3; // rounds that are not counted: they compile the code
const ROUNDS = 21;

type Signature = readonly [signature: Uint8Array, digest: Uint8Array, publicKey: Uint8Array];

/** Every signature that verification checks; for a file of a hub with one key, without hand-overs, recoveries and cards. */
function signaturesOf(data: Uint8Array): Signature[] {
  const { identity, signature, profile, receipts, checkpoints, exhibits, origin, writers } = decode(data);
  if (writers) throw new Error("the file has cards, whose signatures are not counted: make it without --writer");
  const line = Lineage.of(identity, origin, profile);
  const heads = [...receipts, ...checkpoints];
  return [
    [signature.sig, identityDigest(identity), newestKey(identity).hub_pk],
    ...heads.map((head): Signature => [head.hub_sig, headDigest(head), line.signer(head).key.hub_pk]),
    ...exhibits.map(({ msg }): Signature => [msg.sig, msgDigest(msg), msg.client_id]),
  ];
}

/** The CPU time of one run that starts without cached keys. Other processes do not add to it. */
function milliseconds(run: () => void): number {
  forgetKeys();
  const start = process.cpuUsage();
  run();
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1_000;
}

const median = (values: readonly number[]): number => [...values].sort((a, b) => a - b)[values.length >> 1]!;

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
const rounds = Array.from({ length: WARM_UP + ROUNDS }, (_, round) => {
  const times = { bare: 0, proofs: 0, whole: 0 };
  const measure = { bare: () => (times.bare = milliseconds(bare)), whole: () => (times.whole = milliseconds(whole)) };
  for (const name of round % 2 ? (["whole", "bare"] as const) : (["bare", "whole"] as const)) measure[name]();
  times.proofs = milliseconds(proofs);
  return { ...times, ratio: (times.whole - times.proofs) / times.bare, ratio_with_proofs: times.whole / times.bare };
}).slice(WARM_UP);
const names = ["bare", "proofs", "whole", "ratio", "ratio_with_proofs"] as const;
const columns = names.map((name) => [name, rounds.map((round) => round[name])] as const);
const medians = Object.fromEntries(columns.map(([name, values]) => [name, median(values)]));
console.log(JSON.stringify({ signatures: signatures.length, medians, rounds: Object.fromEntries(columns) }));
