/** The library: verify an evidence file, or single objects of the protocol. */
export { fromHex, hex } from "./bytes.js";
export { isValid } from "./ed25519.js";
export { FAULT_NAMES, Malformed, Unverified } from "./errors.js";
export { type Check, type Entry, type Knowledge, type Report, verify } from "./evidence.js";
export { examine, type Examination, type Outcome, STATUS, toJson, toText } from "./report.js";
export * as identity from "./identity.js";
export * as mmr from "./mmr.js";
export * as retention from "./retention.js";
export * as sealed from "./sealed.js";
export * as statements from "./statements.js";
export * as wire from "./wire.js";
