"""Scenario D and captoken.json: who may write where, for how long and how fast."""

from dataclasses import replace

from vectors.form import Doc, secret, signer_doc, signing_key
from vectors.hub import ModelHub
from vectors.recorder import Draft, Scenario
from veen.core import CapPresentation, CapToken, Limits, Profile, Rate, cap_token
from veen.core.cbor import Value, encode
from veen.core.hashing import h, ht
from veen.core.limits import MAX_CAP_CHAIN

START = 1_700_000_000
ISSUER = signing_key("issuer")
ORDERS, INVOICES, ARCHIVE = (h(name) for name in (b"orders", b"invoices", b"archive"))


def _tokens() -> dict[str, CapToken]:
    alice, bob = (signing_key(name).public_key for name in ("alice", "bob"))
    too_fast = Rate(Limits().max_cap_rate_per_sec + 1, 1)
    short = cap_token.resign(cap_token.mint(ISSUER, bob, [ORDERS], 10), ISSUER)
    return {
        "steady": cap_token.mint(ISSUER, alice, [ORDERS, INVOICES], 100, Rate(1, 2)),
        "short": cap_token.resign(short, ISSUER),
        "once": cap_token.mint(ISSUER, alice, [INVOICES], 1000, Rate(0, 1)),
        "moment": cap_token.mint(ISSUER, alice, [ARCHIVE], 0),
        "unshown": cap_token.mint(ISSUER, alice, [ORDERS], 100),
        "broken": replace(short, sig_chain=(short.sig_chain[0], short.sig_chain[0])),
        "too-fast": cap_token.mint(ISSUER, alice, [ORDERS], 100, too_fast),
    }


def scenario_d() -> Doc:
    hub = ModelHub(signing_key("hub"), Profile(epoch_sec=0, pad_block=0), closed=True)
    run = Scenario("d", "A hub that admits by capability only: scope, lifetime and rate, second by second.", hub)
    tokens = _tokens()
    orders, invoices, archive = (hub.open_label(stream) for stream in (ORDERS, INVOICES, ARCHIVE))
    for name in ("steady", "once"):
        run.authorize("a capability the hub takes: from here its ttl runs", name, tokens[name], START)
    run.authorize("its second link signs the wrong predecessor", "broken", tokens["broken"], START)
    run.authorize("faster than the hub allows", "too-fast", tokens["too-fast"], START)
    _scope(run, orders, archive, tokens)
    _rate(run, orders, invoices, tokens["steady"].auth_ref(), tokens["once"].auth_ref())
    _ttl(run, orders, archive, tokens)
    shown = {name: {"cbor": token.encode(), "auth_ref": token.auth_ref()} for name, token in tokens.items()}
    return run.document(tokens=shown, issuer=signer_doc(ISSUER))


def _scope(run: Scenario, orders: bytes, archive: bytes, tokens: dict[str, CapToken]) -> None:
    steady, short = tokens["steady"].auth_ref(), tokens["short"].auth_ref()
    run.submit("no capability", Draft("alice", orders, 1, 0), START)
    run.submit("one the hub was never shown", Draft("alice", orders, 1, 0, b"", tokens["unshown"].auth_ref()), START)
    run.submit("one the hub refused", Draft("bob", orders, 1, 0, b"", tokens["broken"].auth_ref()), START)
    run.submit("a stream it does not cover", Draft("alice", archive, 1, 0, b"", steady), START)
    run.submit("somebody else's", Draft("bob", orders, 1, 0, b"", steady), START)
    good, _ = run.compose(Draft("bob", orders, 1, 0, b"", short))
    forged = replace(good, auth_ref=secret("no such token")).encode()
    run.submit_bytes("auth_ref exchanged after signing: the signature is judged first", forged, START)


def _rate(run: Scenario, orders: bytes, invoices: bytes, steady: bytes, once: bytes) -> None:
    """`steady` permits one per second with a burst of two; a bucket belongs to a capability and a label."""

    def send(note: str, label: bytes, client_seq: int, after: int, ref: bytes = steady) -> bytes:
        return run.submit(note, Draft("alice", label, client_seq, 0, b"", ref), START + after).encode()

    send("the first use: the bucket is full", orders, 1, 0)
    second = send("the second of a burst of two", orders, 2, 0)
    send("the bucket is empty", orders, 3, 0)
    send("the bucket of another label is full", invoices, 1, 0)
    run.submit_bytes("a replay while the bucket is empty: the rate is judged first", second, START)
    third = send("one second gives one token", orders, 3, 1)
    send("and no more than one", orders, 4, 1)
    send("what was refused cost nothing: the next second gives again", orders, 4, 2)
    run.submit_bytes("a replay with a token in the bucket", third, START + 3)
    send("the replay took no token", orders, 5, 3)
    send("after a long rest the bucket holds two", orders, 6, 60)
    send("the second of them", orders, 7, 60)
    send("and not three", orders, 8, 60)
    send("another capability for the same label has its own bucket", invoices, 2, 60, once)
    send("a bucket that is never refilled: no retry_after", invoices, 3, 99, once)


def _ttl(run: Scenario, orders: bytes, archive: bytes, tokens: dict[str, CapToken]) -> None:
    steady, short, moment = (tokens[name].auth_ref() for name in ("steady", "short", "moment"))
    run.submit("the last second of its ttl", Draft("alice", orders, 8, 0, b"", steady), START + 100)
    run.submit("one second later", Draft("alice", orders, 9, 0, b"", steady), START + 101)
    run.submit("expired, for a stream it never covered", Draft("alice", archive, 1, 0, b"", steady), START + 101)
    run.authorize("a capability shown late: its ttl starts now", "short", tokens["short"], START + 200)
    run.authorize("shown again: nothing starts anew", "short", tokens["short"], START + 205)
    run.submit("unused until now", Draft("bob", orders, 1, 0, b"", short), START + 206)
    for seq in range(2, 6):
        run.submit("no rate: as many as one likes", Draft("bob", orders, seq, 0, b"", short), START + 210)
    run.submit("expired", Draft("bob", orders, 6, 0, b"", short), START + 211)
    run.authorize("a ttl of 0", "moment", tokens["moment"], START + 300)
    run.submit("a ttl of 0 admits within its first second", Draft("alice", archive, 1, 0, b"", moment), START + 300)
    run.submit("still that second", Draft("alice", archive, 2, 0, b"", moment), START + 300)
    run.submit("the next", Draft("alice", archive, 3, 0, b"", moment), START + 301)


def captokens() -> Doc:
    alice = signing_key("alice").public_key
    plain = cap_token.mint(ISSUER, alice, [ORDERS], 3600)
    rated = cap_token.mint(ISSUER, alice, [ORDERS, INVOICES, ARCHIVE], 86_400, Rate(10, 100))
    longest = plain
    for _ in range(MAX_CAP_CHAIN - 1):
        longest = cap_token.resign(longest, ISSUER)
    tokens = {
        "without-rate": plain,
        "with-rate": rated,
        "two-links": cap_token.resign(plain, ISSUER),
        "eight-links": longest,
        "nothing-allowed": cap_token.mint(ISSUER, alice, [ARCHIVE], 0, Rate(0, 0)),
    }
    return {
        "about": "Capability tokens: their bytes, their names, and those that no hub takes.",
        "issuer": signer_doc(ISSUER),
        "tokens": [_token_doc(name, token) for name, token in tokens.items()],
        "malformed": _malformed_tokens(longest),
        "unverified": _unverified_tokens(rated, tokens["two-links"]),
        "presentations": [
            _presentation_doc("ends with its ttl", cap_token.present(ISSUER, plain, _HUB, START + 7200)),
            _presentation_doc("ends at its date", cap_token.present(ISSUER, longest, _HUB, START + 60)),
        ],
        "unverified_presentations": _unverified_presentations(cap_token.present(ISSUER, plain, _HUB, START)),
    }


_HUB, _OTHER_HUB = ht("veen/hub-id", b"one"), ht("veen/hub-id", b"another")


def _presentation_doc(name: str, shown: CapPresentation) -> Doc:
    return {
        "name": name,
        "hub_id": shown.hub_id,
        "not_after": shown.not_after,
        "token": shown.token.encode(),
        "sig": shown.sig,
        "cbor": shown.encode(),
        "issued_at": START,
        "expires_at": shown.expires_at(START),
    }


def _unverified_presentations(shown: CapPresentation) -> list[Doc]:
    token, stranger = shown.token, signing_key("mallory")
    by_stranger = stranger.sign(ht("veen/cap-presentation", shown.unsigned()))
    cases = {
        "for another hub than was signed": replace(shown, hub_id=_OTHER_HUB),
        "a later date than was signed": replace(shown, not_after=shown.not_after + 1),
        "another token than was signed": replace(shown, token=cap_token.resign(token, ISSUER)),
        "signed by somebody else": replace(shown, sig=by_stranger),
        "a link of the token as its signature": replace(shown, sig=token.sig_chain[0]),
    }
    return [{"name": name, "cbor": one.encode()} for name, one in cases.items()]


def _token_doc(name: str, token: CapToken) -> Doc:
    rate = token.allow.rate
    return {
        "name": name,
        "cbor": token.encode(),
        "auth_ref": token.auth_ref(),
        "issuer_pk": token.issuer_pk,
        "subject_pk": token.subject_pk,
        "stream_ids": token.allow.stream_ids,
        "ttl": token.allow.ttl,
        "rate": {"per_sec": rate.per_sec, "burst": rate.burst} if rate else None,
        "without_sig_chain": _grant(token, token.allow.stream_ids),
        "sig_chain": token.sig_chain,
    }


def _grant(token: CapToken, stream_ids: tuple[bytes, ...]) -> bytes:
    """The bytes that the links sign, built by hand so they can also contain what the core rejects."""
    rate = token.allow.rate
    allow: dict[int, Value] = {1: stream_ids, 2: token.allow.ttl}
    if rate:
        allow[3] = {1: rate.per_sec, 2: rate.burst}
    grant: dict[int, Value] = {1: 1, 2: token.issuer_pk, 3: token.subject_pk, 4: allow}
    return encode(grant)


def _signed(grant: bytes, links: int) -> bytes:
    """A token over any grant, with a chain of any length in which every link verifies."""
    chain = [bytes(64)]
    for _ in range(links):
        chain.append(ISSUER.sign(ht("veen/cap-link", grant + chain[-1])))
    return b"\xa5" + grant[1:] + b"\x05" + encode(chain[1:])


def _malformed_tokens(token: CapToken) -> list[Doc]:
    low, high = sorted((ORDERS, INVOICES))
    cases = [
        ("nine links", "SIZE", _signed(_grant(token, token.allow.stream_ids), MAX_CAP_CHAIN + 1)),
        ("no link", "SIZE", _signed(_grant(token, token.allow.stream_ids), 0)),
        ("no stream", "SIZE", _signed(_grant(token, ()), 1)),
        ("streams in descending order", "CBOR", _signed(_grant(token, (high, low)), 1)),
        ("a stream twice", "CBOR", _signed(_grant(token, (low, low)), 1)),
    ]
    return [{"name": name, "fault": fault, "cbor": data} for name, fault, data in cases]


def _unverified_tokens(rated: CapToken, two: CapToken) -> list[Doc]:
    first, second = two.sig_chain
    stranger = signing_key("mallory")
    grant_by_stranger = cap_token.mint(stranger, two.subject_pk, two.allow.stream_ids, two.allow.ttl).sig_chain
    cases = {
        "the links swapped": replace(two, sig_chain=(second, first)),
        "the first link missing": replace(two, sig_chain=(second,)),
        "the first link twice": replace(two, sig_chain=(first, first)),
        "a link altered": replace(two, sig_chain=(first, bytes((second[0] ^ 1,)) + second[1:])),
        "signed by somebody else": replace(two, sig_chain=grant_by_stranger),
        "a longer ttl than was signed": replace(two, allow=replace(two.allow, ttl=two.allow.ttl + 1)),
        "one more stream than was signed": replace(two, allow=replace(two.allow, stream_ids=rated.allow.stream_ids)),
        "the rate left out": replace(rated, allow=replace(rated.allow, rate=None)),
        "another subject": replace(two, subject_pk=stranger.public_key),
    }
    return [{"name": name, "cbor": token.encode()} for name, token in cases.items()]
