"""The breakages that each check must detect."""

from dataclasses import replace
from itertools import combinations_with_replacement

from tests.selftest import breakages as b
from tests.selftest.breakages import AUTHORIZE, Case
from tests.selftest.broken_hub import Answer, alter_answer, refusals, status_says
from veen.core.admission import AdmissionStage
from veen.core.envelopes import AuthorizeResponse, CheckpointList, CheckpointResponse, StreamResponse

ROWS = (
    "SIZE_PREFILTER",
    "CBOR_INVALID",
    "FIELD_SIZE",
    "VERSION",
    "PROFILE",
    "CT_HASH",
    "SIG_INVALID",
    "CAP_MISSING",
    "CAP_INVALID",
    "AUTH_REF",
    "CAP_TTL",
    "CAP_RATE",
    "PREV_ACK",
    "DUPLICATE",
    "CLIENT_SEQ",
    "EPOCH",
)

_bad_sig = b.receipts_say(lambda _, response: replace(response, hub_sig=b.flip(response.hub_sig)))
_other_leaf = b.receipts_say(lambda forger, response: forger.receipt(response, leaf_hash=b.flip(response.leaf_hash)))
_other_root = b.receipts_say(lambda forger, response: forger.receipt(response, mmr_root=b.flip(response.mmr_root)))
_twice = b.receipts_say(lambda forger, response: forger.receipt(response, stream_seq=max(1, response.stream_seq - 1)))
_gap = b.receipts_say(
    lambda forger, response: forger.receipt(response, stream_seq=response.stream_seq + (response.stream_seq > 2))
)
_per_client = b.counted(lambda message: message.client_id)
_over_all = b.counted(lambda message: b"")
_late_receipt = b.fetched_receipts_say(hub_ts=lambda response: response.hub_ts + 1)
_other_proof_root = b.checkpoints_say(mmr_root=lambda response: b.flip(response.mmr_root))
_no_chain = b.checkpoints_say(label_prev=lambda response: response.label_curr)

STATUS = [
    Case("hub.status", "no limits", status_says(lambda shown: shown.pop("limits"))),
    Case("hub.status", "an unknown admission rule", status_says(lambda shown: shown.update(admission="maybe"))),
    Case("hub.status", "digits in capitals", status_says(lambda s: s.update(hub_id=s["hub_id"].upper()))),
    Case("hub.status", "another identity every time", status_says(b.stranger)),
    Case("hub.profile", "another profile_id", status_says(lambda shown: shown.update(profile_id="00" * 32))),
    Case("hub.limits", "above the protocol", status_says(lambda s: s["limits"].update(max_msg_bytes=2 << 20))),
    Case("hub.time", "an epoch of another time", status_says(lambda shown: shown.update(epoch=shown["epoch"] + 1))),
    Case("hub.time", "time goes back", status_says(b.backwards())),
    Case(
        "hub.time",
        "receipts from the past",
        b.receipts_say(lambda forger, response: forger.receipt(response, hub_ts=1)),
    ),
    Case("hub.identity", "its signature fails", status_says(lambda s: s["identity_sig"].update(sig="00" * 64))),
    Case("hub.identity", "another key is active", status_says(lambda shown: shown.update(hub_pk="11" * 32))),
    Case("hub.pin", "another hub", status_says(b.stranger)),
    Case("hub.health", "not ready", b.answers_status("/readyz", 500)),
    Case("hub.health", "no metrics", b.answers_status("/metrics", 404)),
]

APPENDING = [
    Case("append.receipt", "the signature fails", _bad_sig),
    Case("append.receipt", "for another message", _other_leaf),
    Case("append.sequence", "a number left out", _gap),
    Case("append.sequence", "a number twice", _twice),
    Case(
        "append.time",
        "runs back",
        b.receipts_say(lambda forger, response: forger.receipt(response, hub_ts=99 - response.stream_seq)),
    ),
    Case("append.root", "another root", _other_root),
    Case("append.proof", "another sibling", b.proofs_say("/v1/proof", b.other_sibling)),
    Case("append.proof", "peaks in another order", b.proofs_say("/v1/proof", b.peaks_reversed)),
    Case("append.proof-later", "another sibling", b.proofs_say("/tooling/proof", b.other_sibling)),
    Case("append.replay", "two messages swapped", b.pages_say(b.last_two_swapped)),
    Case("append.replay", "the last left out", b.pages_say(lambda page: replace(page, items=page.items[:-1]))),
    Case("append.receipt-again", "of another time", _late_receipt),
    Case("append.labels", "one count for all", _over_all),
]

SHARING = [
    Case("share.turns", "separate numbers per writer", _per_client),
    Case("share.turns", "another root", _other_root),
    Case("share.at-once", "separate numbers per writer", _per_client),
    Case("share.resend", "accepted again", b.accepts("DUPLICATE")),
    Case("share.resend", "without the place", refusals("DUPLICATE", lambda a: b.as_row(a, "DUPLICATE"))),
    Case("share.reuse", "accepted", b.accepts("DUPLICATE")),
    Case("share.gap", "accepted", b.accepts("CLIENT_SEQ")),
    Case("share.prev-ack", "accepted", b.accepts("PREV_ACK")),
    Case("share.refused", "refusals use up numbers", b.refused_count),
    Case("share.refused", "accepted", b.accepts("PREV_ACK")),
]

CHECKPOINTS = [
    Case("checkpoint.prefix", "another root", _other_proof_root),
    Case(
        "checkpoint.prefix",
        "the signature fails",
        alter_answer("/v1/checkpoint", CheckpointResponse, b.bad_checkpoint_sig),
    ),
    Case("checkpoint.prefix", "another place", b.checkpoints_say(upto_seq=lambda response: response.upto_seq + 1)),
    Case(
        "checkpoint.again", "never twice the same", alter_answer("/v1/checkpoint", CheckpointResponse, b.random_witness)
    ),
    Case("checkpoint.labels", "a label from nowhere", b.checkpoints_say(label_prev=lambda response: bytes(32))),
    Case(
        "checkpoint.labels", "another epoch", b.checkpoints_say(epoch=lambda response: response.epoch + 1), strict=True
    ),
    Case("checkpoint.grown", "another sibling", b.proofs_say("/tooling/consistency", b.other_sibling)),
    Case("checkpoint.grown", "another leaf", b.proofs_say("/tooling/consistency", b.leaf_flipped)),
    Case("epoch.window", "every epoch is accepted", b.accepts("EPOCH"), strict=True),
    Case("epoch.window", "only the current epoch is accepted", b.narrow, strict=True),
    Case("epoch.roll", "no way back to the label before", _no_chain, strict=True),
]


CAPABILITIES = [
    Case(
        "cap.authorize",
        "a wrong expires_at",
        alter_answer(
            AUTHORIZE, AuthorizeResponse, lambda _, response: replace(response, expires_at=response.expires_at + 1)
        ),
    ),
    Case(
        "cap.authorize",
        "another name",
        alter_answer(
            AUTHORIZE, AuthorizeResponse, lambda _, response: replace(response, auth_ref=b.flip(response.auth_ref))
        ),
    ),
    Case(
        "cap.logged",
        "a place without entry",
        alter_answer(
            AUTHORIZE,
            AuthorizeResponse,
            lambda forger, t: replace(t, receipt=forger.receipt(t.receipt, stream_seq=1 << 40)),
        ),
    ),
    Case("cap.again", "lasts longer each time", b.renewed),
    Case("cap.admits", "never", b.no_capability_admits),
    Case("cap.needed", "accepted without", b.accepts("CAP_MISSING"), strict=True),
    Case("cap.unknown", "accepted", b.accepts("CAP_MISSING")),
    Case("cap.subject", "accepted", b.accepts("AUTH_REF")),
    Case("cap.streams", "accepted", b.accepts("AUTH_REF")),
    Case("cap.chain", "a bad link is accepted", b.accepts("CAP_INVALID", AUTHORIZE)),
    Case("cap.chain", "none may be signed again", b.no_long_chains),
    Case("cap.altered", "accepted", b.accepts("CAP_INVALID", AUTHORIZE)),
    Case("cap.issuer", "anyone", b.accepts("E.FORBIDDEN", AUTHORIZE)),
    Case("cap.audience", "accepted", b.accepts("CAP_INVALID", AUTHORIZE)),
    Case("cap.date", "accepted", b.accepts("CAP_TTL", AUTHORIZE)),
    Case(
        "cap.date",
        "ends later",
        alter_answer(
            AUTHORIZE, AuthorizeResponse, lambda _, response: replace(response, expires_at=response.expires_at + 1)
        ),
    ),
    Case("cap.form", "accepted", b.accepts("E.BAD_REQUEST", AUTHORIZE)),
    Case("cap.form", "crashes", refusals("E.BAD_REQUEST", b.crash, AUTHORIZE)),
    Case("cap.ttl", "accepted", b.accepts("CAP_TTL")),
    Case("cap.burst", "accepted", b.accepts("CAP_RATE")),
    Case("cap.burst", "refusals are counted", b.refusals_spend),
    Case("cap.refill", "no header", refusals("CAP_RATE", lambda a: replace(a, headers=b.without_retry(a)))),
    Case("cap.refill", "no limit", b.accepts("CAP_RATE")),
]

REFUSALS = [
    *(case for row in ROWS for case in b.row_cases(row)),
    Case("refuse.forms", "accepted", b.accepts("CBOR_INVALID")),
    Case("refuse.forms", "crashes", refusals("CBOR_INVALID", b.crash)),
    Case("refuse.envelopes", "accepted", b.accepts("CBOR_INVALID")),
    Case("refuse.envelopes", "as a read request", refusals("CBOR_INVALID", lambda a: a.error("E.BAD_REQUEST"))),
    Case("refuse.sizes", "accepted", b.accepts("FIELD_SIZE")),
    Case("refuse.largest", "at half the size", b.too_large_above(1 << 19)),
    Case("refuse.largest", "one byte more", b.takes_one_more),
    Case("refuse.altered", "accepted", b.accepts("SIG_INVALID")),
    Case("refuse.malleable", "accepted", b.accepts("SIG_INVALID")),
]

ORDER = [
    *(
        Case(f"order.{one}-{other}", "the later one is the answer", b.latest(one, other), strict=True)
        for one, other in combinations_with_replacement(AdmissionStage, 2)
        if other is not AdmissionStage.PREFILTER
    ),
    Case("order.all", "the last one is the answer", b.latest(), strict=True),
]

PAGES = [
    Case("page.bounds", "to_seq is not part of it", b.pages_for(b.exclusive)),
    Case("page.echo", "another lower bound", b.pages_say(lambda page: replace(page, from_seq=page.from_seq + 1))),
    Case("page.echo", "another label", b.pages_say(lambda page: replace(page, label=b.flip(page.label)))),
    Case("page.cursor", "ignored", b.pages_for(lambda request: replace(request, cursor=None))),
    Case("page.next", "always", b.pages_say(b.always_more)),
    Case("page.next", "never", b.pages_say(lambda page: replace(page, next_cursor=None))),
    Case("page.most", "ignored", b.pages_for(lambda request: replace(request, max_items=None))),
    Case("page.follow", "leaves one out", b.pages_say(b.skips_one)),
    Case("page.follow", "next_cursor after an empty page", b.pages_say(b.endless)),
    Case("page.follow", "next_cursor leads back to the start", b.pages_say(lambda page: replace(page, next_cursor=1))),
    Case("page.empty", "an error", b.no_empty_pages),
    Case("page.receipts", "never", b.pages_say(b.without_receipts)),
    Case("page.receipts", "always", b.pages_for(lambda request: replace(request, with_receipts=True))),
    Case("page.proof", "never", b.pages_say(lambda page: replace(page, mmr_proof=None))),
    Case("page.proof", "always", b.pages_for(lambda request: replace(request, with_mmr_proof=True))),
]


def _as_html(answer: Answer) -> Answer:
    return replace(answer, headers={"content-type": "text/html"})


REQUESTS = [
    Case("request.version", "not found", refusals("E.VERSION", lambda a: a.error("E.NOT_FOUND"))),
    Case("request.version", "another status", refusals("E.VERSION", lambda a: replace(a, status=404))),
    Case("request.malformed", "as a message", refusals("E.BAD_REQUEST", lambda a: b.as_row(a, "CBOR_INVALID"))),
    Case("request.malformed", "crashes", refusals("E.BAD_REQUEST", b.crash)),
    Case("request.malformed-json", "answered as HTML", refusals("E.BAD_REQUEST", _as_html, only_json=True)),
    Case("request.label", "a bad request", refusals("E.NOT_FOUND", lambda a: a.error("E.BAD_REQUEST"))),
    Case("request.label", "another status", refusals("E.NOT_FOUND", lambda a: replace(a, status=400))),
    Case("request.place", "a bad request", refusals("E.NOT_FOUND", lambda a: a.error("E.BAD_REQUEST"))),
]

FORMS = [
    Case("json.reads", "digits in capitals", b.json_answers(b.capital_digits)),
    Case("json.submit", "another receipt", b.json_receipt_of_another_time),
    Case("json.refusals", "without a stage", refusals("CT_HASH", lambda a: b.detail(a, stage=None), only_json=True)),
    Case("json.strict", "accepted", b.accepts("CBOR_INVALID", only_json=True)),
]

TOOLING = [
    Case("tool.batch", "answers in another order", b.batch_says(b.first_outcome_last)),
    Case(
        "tool.checkpoints",
        "of another label",
        alter_answer("/tooling/checkpoints", CheckpointList, lambda _, t: replace(t, label=bytes(32))),
    ),
    Case(
        "tool.attachment", "comes back otherwise", b.attachments_say("GET", lambda _, a: replace(a, body=a.body[:-1]))
    ),
    Case("tool.attachment-name", "accepted", b.attachments_say("PUT", lambda _, a: replace(a, status=201))),
    Case("tool.attachment-name", "kept", b.attachments_say("GET", lambda _, a: replace(a, status=200))),
    Case("tool.equivocation", "any two", b.answers_status("/tooling/equivocation", 200)),
]

PROPS = [
    Case("props.order", "separate numbers per writer", _per_client),
    Case("props.refusals", "a duplicate is a gap", refusals("DUPLICATE", lambda a: b.as_row(a, "CLIENT_SEQ"))),
    Case("props.refusals", "accepted", b.accepts("PREV_ACK")),
    Case("props.receipts", "the signature fails", _bad_sig),
    Case("props.receipts", "another root", _other_root),
    Case("props.fetched", "of another time", _late_receipt),
    Case("props.proofs", "another sibling", b.proofs_say("/v1/proof", b.other_sibling)),
    Case("props.checkpoints", "another root", _other_proof_root),
    Case("props.later", "another sibling", b.proofs_say("/tooling/proof", b.other_sibling)),
    Case("props.consistency", "another sibling", b.proofs_say("/tooling/consistency", b.other_sibling)),
    Case("props.pages", "two messages swapped", b.pages_say(b.last_two_swapped)),
    Case("props.pages", "to_seq is not part of it", b.pages_for(b.exclusive)),
]

FUZZ = [
    Case("fuzz.messages", "signatures are not looked at", b.accepts("SIG_INVALID")),
    Case("fuzz.messages", "crashes", refusals("CBOR_INVALID", b.crash)),
    Case("fuzz.envelopes", "anything goes", b.accepts("CBOR_INVALID")),
    Case("fuzz.signed", "anything goes", b.accepts("PROFILE")),
    Case("fuzz.reads", "crashes", refusals("E.BAD_REQUEST", b.crash)),
    Case("fuzz.reads", "no envelope", refusals("E.BAD_REQUEST", lambda a: replace(a, body=b"no"))),
    Case("fuzz.tooling", "anything goes", b.accepts("E.BAD_REQUEST", AUTHORIZE)),
    Case("fuzz.tooling", "crashes", refusals("E.BAD_REQUEST", b.crash, "/tooling/consistency")),
    Case("fuzz.json", "answered as HTML", refusals("E.BAD_REQUEST", _as_html, only_json=True)),
    Case("fuzz.afterwards", "rejects everything afterwards", b.rejects_after_damage),
    Case("fuzz.afterwards", "the log is another", b.pages_say(b.last_two_swapped)),
]

_unlike = b.checkpoints_say(mmr_root=lambda response: b.flip(response.mmr_root))
_one_less = b.pages_say(lambda page: replace(page, items=page.items[:-1]))
_one_passed_over = b.pages_say(lambda page: replace(page, items=page.items[:1] + page.items[2:]))


def _reversed(page: StreamResponse) -> StreamResponse:
    return replace(page, items=page.items[::-1])


def _all_by_one(page: StreamResponse) -> StreamResponse:
    """One principal for all: what several wrote is shown under one name."""
    named = [replace(item, msg=replace(item.msg, client_id=page.items[0].msg.client_id)) for item in page.items]
    return replace(page, items=tuple(named))


RECORDER = [
    Case("recorder.order", "reversed", b.pages_say(_reversed)),
    Case("recorder.order", "two events swapped", b.pages_say(b.last_two_swapped)),
    Case("recorder.order", "the last left out", b.pages_for(b.exclusive)),
    Case("recorder.window", "time runs back", b.fetched_receipts_say(hub_ts=lambda response: 99 - response.stream_seq)),
    Case("recorder.window", "another time than was signed", _late_receipt),
    Case("recorder.covered", "another root", _unlike),
    Case("recorder.covered", "another sibling", b.proofs_say("/tooling/proof", b.other_sibling)),
    Case(
        "recorder.covered",
        "the signature fails",
        alter_answer("/v1/checkpoint", CheckpointResponse, b.bad_checkpoint_sig),
    ),
    Case("recorder.whole", "one entry missing", _one_passed_over),
    Case("recorder.whole", "the last entry missing", _one_less),
    Case("recorder.whole", "two swapped", b.pages_say(b.last_two_swapped)),
    Case(
        "recorder.stable", "never twice the same", alter_answer("/v1/checkpoint", CheckpointResponse, b.random_witness)
    ),
    Case("recorder.stable", "another sibling", b.proofs_say("/tooling/consistency", b.other_sibling)),
    Case("recorder.actors", "one name for all", b.pages_say(_all_by_one)),
    Case("recorder.actors", "one left out", _one_less),
    Case("recorder.forged", "accepted", b.accepts("SIG_INVALID")),
    Case("recorder.kept-apart", "accepted", b.accepts("AUTH_REF")),
]

CASES = [
    *STATUS,
    *APPENDING,
    *SHARING,
    *CHECKPOINTS,
    *CAPABILITIES,
    *REFUSALS,
    *ORDER,
    *PAGES,
    *REQUESTS,
    *FORMS,
    *TOOLING,
    *PROPS,
    *FUZZ,
    *RECORDER,
]
