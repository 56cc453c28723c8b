/** The layouts of the objects, by the names that the vectors and the differential tests have for them. */
import * as envelopes from "../src/envelopes.js";
import type { Layout } from "../src/layout.js";
import { hubIdentity } from "../src/identity.js";
import * as retention from "../src/retention.js";
import * as statements from "../src/statements.js";
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

/** The layouts of other objects on which the differential tests compare the faults. */
export const OTHER_LAYOUTS: Record<string, Layout<{ readonly raw: Uint8Array }>> = {
  hub_identity: hubIdentity,
  hand_over: statements.handOver,
  label_size: wire.labelSize,
  proved_size: wire.provedSize,
  recovery: statements.recovery,
  recovery_statement: statements.recoveryStatement,
  segment: retention.segment,
  manifest: retention.manifest,
  tombstone: retention.tombstone,
  attachment_tombstone: retention.attachmentTombstone,
};
