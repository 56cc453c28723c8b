/** Files that someone drops on the page: evidence, cards of writers, and other things. */
import { type Card, card as cardLayout, verifyCard } from "../src/card.js";
import { MAX_EVIDENCE_BYTES } from "../src/evidence.js";
import { isQueryResult } from "../src/query_result.js";

export interface Unusable {
  readonly kind: "unusable";
  readonly name: string;
  readonly why: string;
  readonly data?: Uint8Array;
}
export type Dropped =
  | { readonly kind: "evidence"; readonly name: string; readonly data: Uint8Array }
  | { readonly kind: "card"; readonly name: string; readonly card: Card }
  | Unusable;

const KIND_BYTES = 64; // the kind of a file is within its first bytes

export async function read(file: File): Promise<Dropped> {
  const { name } = file;
  const unusable = (why: string, data?: Uint8Array): Dropped => ({ kind: "unusable", name, why, ...(data ? { data } : {}) });
  if (file.size > MAX_EVIDENCE_BYTES) return unusable(`it has ${file.size} bytes, and evidence has at most ${MAX_EVIDENCE_BYTES}.`);
  let data: Uint8Array;
  try {
    data = new Uint8Array(await file.arrayBuffer());
  } catch {
    return unusable("it cannot be read.");
  }
  if (isEvidence(data)) return { kind: "evidence", name, data };
  if (begins(data, "veen/card")) {
    const found = confirmedCard(data);
    if (typeof found !== "string") return { kind: "card", name, card: found };
    return unusable(`${found} Ask the writer for the card again.`);
  }
  if (/^\s*[0-9a-f]{64}\s*$/i.test(begin(data, 128)) && data.length <= 128) {
    return unusable("it contains a key or a hub id. If it did not come from the sender of the evidence, copy the digits into the field.", data);
  }
  return unusable("it is neither evidence nor a card.", data);
}

/** Whether a file states that it is evidence, of entries or of a query result. It may still be damaged. */
const isEvidence = (data: Uint8Array): boolean => begins(data, "veen.evidence.v1") || isQueryResult(data);

const begin = (data: Uint8Array, length: number): string => String.fromCharCode(...data.subarray(0, length));
const begins = (data: Uint8Array, kind: string): boolean => begin(data, KIND_BYTES).includes(kind);

/** The card of a writer whose client_ids confirm it, or why it is not one. */
function confirmedCard(data: Uint8Array): Card | string {
  try {
    const found = cardLayout.decode(data);
    verifyCard(found);
    return found.confirmations ? found : "this card is of an old kind, which does not prove whose keys it lists.";
  } catch {
    return "this card is damaged.";
  }
}
