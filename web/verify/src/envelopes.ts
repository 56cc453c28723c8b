/** Requests and responses of a hub. A verifier of files does not need them; a verifier of answers does. */
import { MAP, readValue } from "./cbor.js";
import { Malformed, SIZE } from "./errors.js";
import { bool, bstr, type Field, intMap, list, optional, text, uint, version } from "./layout.js";
import { checkpoint, mmrProof, msg, receipt } from "./wire.js";

const MAX_DETAIL_BYTES = 4096;

/** A map of text to unsigned integer or text. */
const details: Field<ReadonlyMap<string, bigint | string>> = {
  read(reader, name) {
    const start = reader.pos;
    reader.count(name, MAP);
    reader.pos = start;
    const found = readValue(reader, 1);
    if (reader.pos - start > MAX_DETAIL_BYTES) reader.note(SIZE, `${name} is longer than ${MAX_DETAIL_BYTES} bytes`);
    const checked = new Map<string, bigint | string>();
    for (const [key, value] of found as Map<bigint | string, unknown>) {
      const isValue = typeof value === "string" || (typeof value === "bigint" && value >= 0n);
      if (typeof key !== "string" || !isValue) throw new Malformed(`${name} must map text to unsigned integers or text`);
      checked.set(key, value);
    }
    return checked;
  },
};

const item = intMap("item", { stream_seq: uint(), msg, receipt: optional(receipt) });
const place = { ver: version(), label: bstr(), stream_seq: uint() };
const serverVersion = optional(text());

export const submitRequest = intMap("submit request", { ver: version(), msg });
export const submitResponse = intMap("submit response", { ver: version(), receipt, server_version: serverVersion });
export const streamRequest = intMap("stream request", {
  ver: version(),
  label: bstr(),
  from_seq: uint(),
  to_seq: optional(uint()),
  max_items: optional(uint()),
  cursor: optional(uint()),
  with_receipts: optional(bool()),
  with_mmr_proof: optional(bool()),
});
export const streamResponse = intMap("stream response", {
  ver: version(),
  label: bstr(),
  from_seq: uint(),
  to_seq: optional(uint()),
  items: list(item, 1000),
  next_cursor: optional(uint()),
  mmr_proof: optional(mmrProof),
  server_version: serverVersion,
});
export const receiptRequest = intMap("receipt request", place);
export const receiptResponse = intMap("receipt response", { ver: version(), receipt, server_version: serverVersion });
export const proofRequest = intMap("proof request", place);
export const proofResponse = intMap("proof response", { ver: version(), mmr_proof: mmrProof, server_version: serverVersion });
export const checkpointRequest = intMap("checkpoint request", { ver: version(), label: bstr(), upto_seq: uint() });
export const checkpointResponse = intMap("checkpoint response", {
  ver: version(),
  checkpoint,
  server_version: serverVersion,
});
export const errorEnvelope = intMap("error", {
  ver: version(),
  code: text(),
  message: text(),
  detail: optional(details),
  retry_after: optional(uint()),
  request_id: optional(text()),
});
