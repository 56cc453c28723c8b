/** The structural faults of a wire object, in the order in which they are reported. docs/wire.md, "Order of checks". */
export const CBOR = 1;
export const SIZE = 2;
export const VERSION = 3;
export type Fault = typeof CBOR | typeof SIZE | typeof VERSION;
export const FAULT_NAMES: Readonly<Record<Fault, string>> = { [CBOR]: "CBOR", [SIZE]: "SIZE", [VERSION]: "VERSION" };

/** The bytes are not the object that they should be. */
export class Malformed extends Error {
  readonly fault: Fault;

  constructor(reason: string, fault: Fault = CBOR) {
    super(reason);
    this.name = "Malformed";
    this.fault = fault;
  }
}

/** The object decodes, but a signature, hash or proof in it does not verify. */
export class Unverified extends Error {
  constructor(reason: string) {
    super(reason);
    this.name = "Unverified";
  }
}
