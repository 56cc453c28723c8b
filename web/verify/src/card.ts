/** Identity cards: which client_ids belong to one identity. docs/wire.md, "Evidence". */
import { hex, ht, short } from "./bytes.js";
import { isValid } from "./ed25519.js";
import { Unverified } from "./errors.js";
import { array, bstr, constant, intMap, list, type Of, optional, uint, version } from "./layout.js";

const SIG = 64;
const SIG_ITEM = 2 + SIG;
const MOST = 64;

const prekey = array("prekey", {
  ver: version(),
  number: uint(),
  public_key: bstr(),
  expires_at: uint(),
  sig: bstr(SIG),
});

export const card = intMap(
  "card",
  {
    ver: version(),
    kind: constant("veen/card"),
    id_sign: bstr(),
    id_dh: bstr(),
    generation: uint(),
    created_at: uint(),
    client_ids: list(bstr(), MOST, 1),
    prekeys: list(prekey, MOST, 1),
    sig: bstr(SIG),
    confirmations: optional(list(bstr(SIG), MOST, 1)),
  },
  ({ client_ids, prekeys, confirmations }) => {
    if (confirmations && confirmations.length !== client_ids.length) {
      return `${confirmations.length} confirmations for ${client_ids.length} client_ids`;
    }
    if (new Set(client_ids.map(hex)).size !== client_ids.length) return "a client_id is listed twice";
    const ascends = prekeys.every((one, at) => at === 0 || prekeys[at - 1]!.number < one.number);
    return ascends ? undefined : "prekeys are not in strictly ascending order";
  },
);
export type Card = Of<typeof card>;

/** The digest that the identity signs: the card as a map without its signature and the confirmations. */
function digest({ raw, confirmations }: Card): Uint8Array {
  // The key of the confirmations and the head of their array, which has two bytes from 24 on.
  const tail = confirmations ? 1 + (confirmations.length < 24 ? 1 : 2) + confirmations.length * SIG_ITEM : 0;
  return ht("veen/card", Uint8Array.of(0xa8), raw.subarray(1, raw.length - tail - 1 - SIG_ITEM));
}

/** Throw unless the identity signed the card and each prekey, and each client_id confirms the identity. */
export function verifyCard(found: Card): void {
  const { id_sign, client_ids, confirmations, prekeys } = found;
  if (!isValid(id_sign, digest(found), found.sig)) throw new Unverified("the signature of a card does not verify");
  const confirmed = ht("veen/card-client", id_sign);
  confirmations?.forEach((sig, at) => {
    if (!isValid(client_ids[at]!, confirmed, sig)) {
      throw new Unverified(`client_id ${short(client_ids[at]!)} does not confirm the card`);
    }
  });
  for (const { raw, number, sig } of prekeys) {
    const signed = ht("veen/prekey", Uint8Array.of(0x84), raw.subarray(1, raw.length - SIG_ITEM));
    if (!isValid(id_sign, signed, sig)) throw new Unverified(`the signature of prekey ${number} does not verify`);
  }
}

/** The id_sign of each client_id that a card names and that confirms it, by client_id in hex. */
export function writersOf(cards: readonly Card[]): ReadonlyMap<string, Uint8Array> {
  const found = new Map<string, Uint8Array>();
  for (const one of cards) {
    verifyCard(one);
    if (!one.confirmations) continue;
    for (const clientId of one.client_ids.map(hex)) {
      const known = found.get(clientId);
      if (known && hex(known) !== hex(one.id_sign)) {
        throw new Unverified(`two identities confirm client_id ${clientId.slice(0, 16)}…`);
      }
      found.set(clientId, one.id_sign);
    }
  }
  return found;
}
