/** The layouts of the objects in `malformed.json`, by their names there. */
import * as envelopes from "../src/envelopes.js";
import type { Layout } from "../src/layout.js";
import * as wire from "../src/wire.js";

export const LAYOUTS: Record<string, Layout<{ readonly raw: Uint8Array }>> = {
  msg: wire.msg,
  receipt: wire.receipt,
  checkpoint: wire.checkpoint,
  payload_hdr: wire.payloadHdr,
  profile: wire.profile,
  mmr_proof: wire.mmrProof,
  cap_token: wire.capToken,
  cap_presentation: wire.capPresentation,
  submit_request: envelopes.submitRequest,
  submit_response: envelopes.submitResponse,
  stream_request: envelopes.streamRequest,
  stream_response: envelopes.streamResponse,
  receipt_request: envelopes.receiptRequest,
  receipt_response: envelopes.receiptResponse,
  proof_request: envelopes.proofRequest,
  proof_response: envelopes.proofResponse,
  checkpoint_request: envelopes.checkpointRequest,
  checkpoint_response: envelopes.checkpointResponse,
  error: envelopes.errorEnvelope,
};
