/** A hub's identity: its keys over time, the chain of endorsements, and which hub signed what. */
import { ARRAY, UINT, writeHead } from "./cbor.js";
import { compare, concat, equal, h, hex, ht, short, U64_MAX, u64be, utf8 } from "./bytes.js";
import { isValid } from "./ed25519.js";
import { Unverified } from "./errors.js";
import { bstr, intMap, list, type Of, optional, text, textMap, uint, version } from "./layout.js";
import { ascending, type Checkpoint, checkpoint, type Head, headDigest, isReceipt, labelOf, type Profile, sizeOf } from "./wire.js";

const ROOT = "root";
const INCARNATION = "incarnation";
const ANCHORINGS = ["data-directory", "fingerprint", "certificate"];

export const hubKey = textMap(
  "hub key",
  {
    key_id: bstr(),
    hub_pk: bstr(),
    valid_from: uint(),
    valid_until: optional(uint()),
    endorsement: optional(bstr(64)),
    role: optional(text()),
  },
  (key) => {
    if (key.role !== undefined && key.role !== ROOT && key.role !== INCARNATION) return "unknown role of a hub key";
    if (key.valid_until !== undefined && key.valid_until <= key.valid_from) return "valid_until is not after valid_from";
    return equal(key.key_id, keyId(key.hub_pk)) ? undefined : "key_id is not that of hub_pk";
  },
);
export type HubKey = Of<typeof hubKey>;

const originRef = textMap("origin", { hub_id: bstr(), routing_key: bstr(), digest: bstr() });

export const hubIdentity = textMap(
  "hub identity",
  {
    hub_id: bstr(),
    hub_keys: list(hubKey, 1024, 1),
    anchoring: text(),
    origin: optional(originRef),
    realm_id: optional(bstr()),
  },
  (identity) => {
    const keys = identity.hub_keys;
    for (let at = 1; at < keys.length; at++) {
      const [a, b] = [keys[at - 1]!, keys[at]!];
      const inOrder = a.valid_from < b.valid_from || (a.valid_from === b.valid_from && compare(a.hub_pk, b.hub_pk) < 0);
      if (!inOrder) return "hub_keys are not in order of valid_from and hub_pk";
    }
    if (new Set(keys.map((key) => hex(key.hub_pk))).size !== keys.length) return "a key occurs twice";
    if (keys.some((key, at) => (key.endorsement === undefined) !== (at === 0))) {
      return "every key except the first must have an endorsement, and the first must have none";
    }
    const roots = keys.filter((key) => key.role === ROOT);
    if (roots.length === keys.length) return "there is no signing key";
    if (roots.length > 1) return "there are two root keys";
    if (roots[0]?.valid_until !== undefined) return "a root key has no valid_until";
    if (keys.some((key, at) => key.role === INCARNATION && at !== 1)) {
      return "only the key after the root can begin an incarnation";
    }
    return ANCHORINGS.includes(identity.anchoring) ? undefined : "unknown anchoring";
  },
);
export type HubIdentity = Of<typeof hubIdentity>;

export const identitySignature = textMap("hub identity signature", { key_id: bstr(), sig: bstr(64) });
export type IdentitySignature = Of<typeof identitySignature>;

export const keyHistory = intMap("key history", { identity: hubIdentity, signature: identitySignature });

export const originHub = intMap(
  "origin hub",
  { identity: hubIdentity, signature: identitySignature, checkpoints: list(checkpoint, 65_536) },
  (hub) =>
    ascending(hub.checkpoints, (one) => one.label_curr) ? undefined : "checkpoints are not in ascending order of label",
);
export const forkOrigin = intMap("origin of a fork", { ver: version(), hubs: list(originHub, 64, 1) });
export type ForkOrigin = Of<typeof forkOrigin>;

export const keyId = (hubPk: Uint8Array): Uint8Array => ht("veen/hub-key-id", hubPk);
export const hubId = (firstHubPk: Uint8Array): Uint8Array => ht("veen/hub-id", firstHubPk);

export const rootKey = (identity: HubIdentity): HubKey | undefined =>
  identity.hub_keys.find((key) => key.role === ROOT);
/** The keys that sign receipts and checkpoints, oldest first. */
export const signingKeys = (identity: HubIdentity): HubKey[] => identity.hub_keys.filter((key) => key.role !== ROOT);
export const newestKey = (identity: HubIdentity): HubKey => signingKeys(identity).at(-1)!;

/** Canonical JSON of the record, the form that is signed. Its texts are constants, which need no escapes. */
export function canonicalJson(identity: HubIdentity): Uint8Array {
  const { hub_id, hub_keys, anchoring, origin, realm_id } = identity;
  const keys = hub_keys.map(({ key_id, hub_pk, valid_from, valid_until, endorsement, role }) =>
    canonical({ key_id, hub_pk, valid_from, valid_until, endorsement, role }),
  );
  const shownOrigin = origin && canonical({ hub_id: origin.hub_id, routing_key: origin.routing_key, digest: origin.digest });
  return utf8(
    canonical({ hub_id, anchoring, realm_id }, { hub_keys: `[${keys.join(",")}]`, origin: shownOrigin }),
  );
}

function canonical(
  fields: Record<string, Uint8Array | bigint | string | undefined>,
  written: Record<string, string | undefined> = {},
): string {
  const texts: [string, string][] = [];
  for (const [name, field] of Object.entries(fields)) {
    if (field !== undefined) texts.push([name, typeof field === "bigint" ? `${field}` : JSON.stringify(typeof field === "string" ? field : hex(field))]);
  }
  for (const [name, text] of Object.entries(written)) if (text !== undefined) texts.push([name, text]);
  texts.sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${texts.map(([name, text]) => `"${name}":${text}`).join(",")}}`;
}

export const identityDigest = (identity: HubIdentity): Uint8Array => ht("veen/hub-identity", canonicalJson(identity));

const ENDORSEMENT_TAGS: Readonly<Record<string, string>> = { [ROOT]: "veen/hub-root", [INCARNATION]: "veen/hub-incarnation" };

/** Throw unless hub_id matches the first key and each later key is endorsed by the root, or else by the key before. */
export function verifyChain(identity: HubIdentity): void {
  const first = identity.hub_keys[0]!;
  if (!equal(hubId(first.hub_pk), identity.hub_id)) throw new Unverified("hub_id is not derived from the first key");
  let endorser = first;
  let hasRoot = first.role === ROOT;
  for (const key of identity.hub_keys.slice(1)) {
    const by = key.role === ROOT ? first : endorser;
    const tag = key.role === undefined ? "veen/hub-key" : ENDORSEMENT_TAGS[key.role]!;
    const digest = ht(tag, identity.hub_id, key.hub_pk, u64be(key.valid_from));
    if (!isValid(by.hub_pk, digest, key.endorsement!)) {
      throw new Unverified(`the endorsement of hub key ${short(key.key_id)} does not verify`);
    }
    if (!hasRoot) {
      endorser = key;
      hasRoot = key.role === ROOT;
    }
  }
}

/** Throw unless the newest key signed the record; or the given root key, for a record that is kept elsewhere. */
export function verifyIdentitySignature(identity: HubIdentity, signature: IdentitySignature, rootPk?: Uint8Array): void {
  const signer = rootPk ?? newestKey(identity).hub_pk;
  if (!equal(keyId(signer), signature.key_id)) {
    throw new Unverified("the identity record is signed by another key than the newest key");
  }
  if (!isValid(signer, identityDigest(identity), signature.sig)) {
    throw new Unverified("the signature of the identity record does not verify");
  }
}

/** Whether the pin is the hub's id or the fingerprint of one of its keys. It proves nothing without the chain. */
export function isPinned(identity: HubIdentity, pin: Uint8Array): boolean {
  return equal(pin, identity.hub_id) || identity.hub_keys.some((key) => equal(pin, h(key.hub_pk)));
}

export function verifyIdentity(identity: HubIdentity, signature: IdentitySignature, pin: Uint8Array): void {
  if (!isPinned(identity, pin)) throw new Unverified("it is not the hub that was entered");
  verifyChain(identity);
  verifyIdentitySignature(identity, signature);
}

/** Whether a record continues another one: the same keys, possibly closed, then new keys. */
export function follows(record: HubIdentity, known: HubIdentity): boolean {
  if (record.hub_keys.length < known.hub_keys.length) return false;
  const same =
    equal(record.hub_id, known.hub_id) && sameRaw(record.origin, known.origin) && sameBytes(record.realm_id, known.realm_id);
  return same && known.hub_keys.every((before, at) => {
    const now = record.hub_keys[at]!;
    const kept = before.valid_until === undefined || before.valid_until === now.valid_until;
    const unchanged =
      equal(before.hub_pk, now.hub_pk) && before.valid_from === now.valid_from && before.role === now.role;
    return kept && unchanged && sameBytes(before.endorsement, now.endorsement);
  });
}

const sameBytes = (a: Uint8Array | undefined, b: Uint8Array | undefined): boolean =>
  a === undefined || b === undefined ? a === b : equal(a, b);
const sameRaw = (a: { raw: Uint8Array } | undefined, b: { raw: Uint8Array } | undefined): boolean =>
  sameBytes(a?.raw, b?.raw);

/** Whether both are records of one hub that began again with one of them. */
export function isOtherIncarnation(one: HubIdentity, other: HubIdentity): boolean {
  const [mine, theirs] = [signingKeys(one)[0]!, signingKeys(other)[0]!];
  const restarted = mine.role === INCARNATION || theirs.role === INCARNATION;
  return equal(one.hub_id, other.hub_id) && !equal(mine.hub_pk, theirs.hub_pk) && restarted;
}

/** Whether the hub of the known record began again with this one, after all keys that are known. */
export function beginsAfter(record: HubIdentity, known: HubIdentity): boolean {
  const first = signingKeys(record)[0]!;
  const isLater = first.role === INCARNATION && first.valid_from > newestKey(known).valid_from;
  return isLater && isOtherIncarnation(record, known);
}

export const isIncarnation = (key: HubKey): boolean => key.role === INCARNATION;

/** The newest key of the hub that was active at that time and signed. */
export function signerOf(identity: HubIdentity, head: Head, profile: Profile): HubKey | undefined {
  const [start, end] = signingTime(head, profile);
  return keyThatSigned(identity, headDigest(head), head.hub_sig, start, end);
}

/** Throw unless a key of the hub that was active at `hub_ts` signed another statement. */
export function verifyStatement(identity: HubIdentity, digest: Uint8Array, sig: Uint8Array, hub_ts: bigint, what: string): void {
  if (keyThatSigned(identity, digest, sig, hub_ts, hub_ts + 1n)) return;
  throw new Unverified(`no key of the hub that was active at that time signed ${what}`);
}

function keyThatSigned(
  identity: HubIdentity,
  digest: Uint8Array,
  sig: Uint8Array,
  start: bigint,
  end: bigint,
): HubKey | undefined {
  return signingKeys(identity)
    .reverse()
    .find((key) => isActive(key, start, end) && isValid(key.hub_pk, digest, sig));
}

/** The time in which the key of a statement must have been active: one second, an epoch, or any. */
function signingTime(head: Head, profile: Profile): [start: bigint, end: bigint] {
  if (isReceipt(head)) return [head.hub_ts, head.hub_ts + 1n];
  const seconds = profile.epoch_sec;
  return seconds ? [head.epoch * seconds, (head.epoch + 1n) * seconds] : [0n, U64_MAX + 1n];
}

const isActive = (key: HubKey, start: bigint, end: bigint): boolean =>
  key.valid_from < end && (key.valid_until === undefined || start < key.valid_until);

/** The hubs that signed a log, newest first, and the checkpoint of each prefix that an older hub signed, by label. */
export class Lineage {
  private readonly signers = new Map<string, { identity: HubIdentity; key: HubKey }>();

  private constructor(
    readonly identities: readonly HubIdentity[],
    private readonly kept: readonly ReadonlyMap<string, Checkpoint>[],
    private readonly profile: Profile,
  ) {}

  /** Throws unless each record names the digest of the origin that follows it. */
  static of(identity: HubIdentity, origin: ForkOrigin | undefined, profile: Profile): Lineage {
    const hubs = origin?.hubs ?? [];
    const identities = [identity, ...hubs.map((hub) => hub.identity)];
    hubs.forEach((hub, at) => {
      const named = identities[at]!.origin;
      const rest = hubs.slice(at).map((one) => one.raw);
      // The digest of the file that starts with this hub: {1: ver, 2: hubs}.
      const head = concat(Uint8Array.of(0xa2, 0x01, 0x01), writeHead(UINT, 2), writeHead(ARRAY, rest.length));
      const digest = ht("veen/origin", head, ...rest);
      const matches =
        named !== undefined &&
        equal(named.digest, digest) &&
        equal(named.hub_id, hub.identity.hub_id) &&
        equal(named.routing_key, routingKey(hub.identity));
      if (!matches) throw new Unverified("the digest of the origin is not the one in the identity record");
      verifyIdentity(hub.identity, hub.signature, hub.identity.hub_id);
    });
    if (identities.at(-1)!.origin !== undefined) {
      throw new Unverified("the identity record names an origin, but it is missing");
    }
    const kept = hubs.map((hub) => new Map(hub.checkpoints.map((one) => [hex(one.label_curr), one])));
    return new Lineage(identities, kept, profile);
  }

  /** The hub that signs at that place of a label. */
  identityAt(label: Uint8Array, size: bigint): HubIdentity {
    const name = hex(label);
    let at = 0;
    while (at < this.kept.length && size <= (this.kept[at]!.get(name)?.upto_seq ?? 0n)) at++;
    return this.identities[at]!;
  }

  /** The hub and the key that signed. Throws if none did. Each statement is verified once. */
  signer(head: Head): { identity: HubIdentity; key: HubKey } {
    const name = hex(head.raw);
    const known = this.signers.get(name);
    if (known) return known;
    const identity = this.identityAt(labelOf(head), sizeOf(head));
    const key = signerOf(identity, head, this.profile);
    if (!key) {
      const what = isReceipt(head) ? "receipt of entry" : "checkpoint at entry";
      throw new Unverified(`no key of the hub that was active at that time signed the ${what} ${sizeOf(head)}`);
    }
    this.signers.set(name, { identity, key });
    return { identity, key };
  }
}

export const routingKey = (identity: HubIdentity): Uint8Array =>
  identity.origin?.routing_key ?? ht("veen/routing_key", identity.hub_id);
