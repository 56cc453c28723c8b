/** The evidence files of the vectors, and the signatures on which libraries disagree. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { ed25519 } from "@noble/curves/ed25519.js";

import { card } from "../src/card.js";
import { isValid } from "../src/ed25519.js";
import { MAX_EVIDENCE_BYTES } from "../src/evidence.js";
import { hubIdentity } from "../src/identity.js";
import { examine, type Examination, toJson, toText } from "../src/report.js";
import { bin, type Vectors, vectors } from "./vector_files.js";

const FILES: Vectors[] = [...vectors("evidence").files, ...vectors("query-results").files];

function run(one: Vectors, data = bin(one.cbor)): Examination {
  return examine(data, {
    pin: one.pin === null ? undefined : bin(one.pin),
    readers: one.reader === null ? [] : [bin(one.reader)],
    witnesses: one.witnesses.map(bin),
    threshold: one.threshold ?? undefined,
    writers: one.writers.map((each: string) => card.decode(bin(each))),
    record: one.hub_identity === null ? undefined : hubIdentity.decode(bin(one.hub_identity)),
  });
}

/** A report with sorted names and all integers as text. */
function plain(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value === "number" || typeof value === "bigint") return `${value}`;
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, plain(field)]));
}

for (const one of FILES) {
  test(`evidence: ${one.name}`, () => {
    const { outcome, report, checks } = run(one);
    const failed = checks.find((check) => check.failure !== undefined);
    assert.equal(outcome, one.outcome, failed && `${failed.what}: ${failed.failure}`);
    assert.deepEqual(report && plain(toJson(report)), one.report && plain(one.report));
    if (report) assert.deepEqual(plain(JSON.parse(toText(plain(toJson(report)) as string))), plain(one.report));
  });
}

test("a change of any byte of a file is refused, or is one that the hub did not sign", () => {
  const one = FILES[0];
  const sound = bin(one.cbor);
  const free: number[] = [];
  for (let at = 0; at < sound.length; at++) {
    const changed = sound.slice();
    changed[at]! ^= 0x40;
    const { outcome } = run(one, changed);
    if (outcome === "holds") free.push(at);
  }
  // Only the time at which the file was made is not covered by any signature; the claim is empty.
  assert.ok(free.length > 0 && free.length <= 4, `${free}`);
});

test("a Buffer of Node is verified as an array is, and stays unchanged", () => {
  const buffer = Buffer.from(bin(FILES[0].cbor));
  assert.equal(run(FILES[0], buffer).outcome, "holds");
  assert.equal(run(FILES[0], buffer).outcome, "holds");
  assert.equal(buffer.toString("hex"), FILES[0].cbor);
});

test("a file above the maximum is refused before it is read", () => {
  assert.equal(run(FILES[0], new Uint8Array(MAX_EVIDENCE_BYTES + 1)).outcome, "malformed");
});

test("the rule decides about every signature on which libraries disagree", () => {
  const cases: Vectors[] = vectors("ed25519").signatures;
  assert.ok(cases.length > 100);
  let differs = 0;
  for (const { public_key, message, signature, valid, name } of cases) {
    const [pk, text, sig] = [bin(public_key), bin(message), bin(signature)];
    assert.equal(isValid(pk, text, sig), valid, name);
    if (ed25519.verify(sig, text, pk, { zip215: false }) !== valid) differs++;
  }
  assert.ok(differs > 0, "the library's own check decides the same, so these cases test nothing");
});
