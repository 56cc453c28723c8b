/** Answers questions of the differential tests: one JSON object per line in, one per line out. */
import { createInterface } from "node:readline";

import { card } from "../src/card.js";
import { contentJson } from "../src/content.js";
import { isValid } from "../src/ed25519.js";
import { hubIdentity } from "../src/identity.js";
import { examine, toJson, toText } from "../src/report.js";
import type { PayloadHdr } from "../src/wire.js";
import { LAYOUTS, OTHER_LAYOUTS } from "./layouts.js";
import { bin, faultOf, type Vectors } from "./vector_files.js";

function answer(asked: Vectors): string {
  if (asked.signature !== undefined) {
    return JSON.stringify(isValid(bin(asked.public_key), bin(asked.message), bin(asked.signature)));
  }
  if (asked.object !== undefined) {
    const layout = LAYOUTS[asked.object] ?? OTHER_LAYOUTS[asked.object];
    return JSON.stringify(faultOf(() => layout!.decode(bin(asked.cbor))));
  }
  if (asked.body !== undefined) {
    const header = { schema: bin(asked.schema) } as PayloadHdr;
    return toText(contentJson({ header, body: bin(asked.body) }));
  }
  const { outcome, report } = examine(bin(asked.cbor), {
    pin: asked.pin === null ? undefined : bin(asked.pin),
    readers: asked.reader === null ? [] : [bin(asked.reader)],
    witnesses: asked.witnesses.map(bin),
    threshold: asked.threshold ?? undefined,
    writers: asked.writers.map((one: string) => card.decode(bin(one))),
    record: asked.hub_identity === null ? undefined : hubIdentity.decode(bin(asked.hub_identity)),
  });
  return report ? toText({ outcome, report: toJson(report) }) : toText({ outcome });
}

for await (const line of createInterface({ input: process.stdin })) console.log(answer(JSON.parse(line)));
