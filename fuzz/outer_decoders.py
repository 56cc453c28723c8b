"""The decoders outside of the core: files, bundles, requests, recorded events, storage and VEIL.

Seeds come from `vectors/`, from the tables of wire objects, and from `fuzz/corpus` for formats that have no vectors.
"""

import asyncio
import importlib
import json
import pkgutil
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import veen
from fuzz.damage import cbor_spans
from fuzz.decoder import (
    Decoder,
    cbor_decoder,
    is_the_one_encoding,
    json_decoder,
    raw_decoder,
)
from plumbing.cli.command import Misuse
from plumbing.durable import Disk
from tests.core.wire_strategies import ALL_WIRE, barest, fullest
from tests.veil import test_fuzz as veil_tests
from veen.bridge import anchor_backends, bundle, qr
from veen.bridge.anchor_backends import FileLog
from veen.bridge.anchors import AnchorStatement
from veen.cli.hub import hub_settings
from veen.client import capabilities, cbor_sequence, evidence
from veen.client.trust import HubStatus
from veen.core import admin, canonical_json, cap_token, control_stream, strict_json, wire_json
from veen.core.attachment import UploadProof
from veen.core.cbor import Wire
from veen.core.errors import Malformed, Refused, Unavailable, Unverified
from veen.core.msg import Msg
from veen.core.proof_of_work import PowCookie
from veen.core.read_proof import ReadProof
from veen.hub import submit_api
from veen.overlays.operations import operation_events, rules
from veen.pipeline.audit import audit_report
from veen.pipeline.decoding import decoder
from veen.pipeline.tables import commit
from veen.query import descriptor
from veen.query.digest import ResultDigest
from veen.query.policy import PolicyBook
from veen.query.query_store import QueryJob
from veen.recorder import json_lines, otlp, syslog
from veen.recorder.normalize import Defaults
from veen.storage import chunk_reader, frame, journal, journal_mark
from veil import GroupSecret, SigningKey, VeilError
from veil.lanes import file_lane
from veil.lanes.lane import Endpoint
from veil.lanes.session import Hello
from veil.node import frames, trust
from veil.node.addressing import Destination
from veil.node.outbox import Item, ParcelRecord
from veil.node.subscriptions import Subscription
from veil.runtime.contacts import Contact
from veil.runtime.data_directory import DataDirectory, load_settings
from veil.runtime.groups import Invitation, load_keyring

VECTORS = Path(__file__).parents[1] / "vectors"
CORPUS = Path(__file__).parent / "corpus"
SCRATCH = tempfile.TemporaryDirectory(prefix="veen-fuzz-")
FOLDER = Path(SCRATCH.name)
NOW_MS = 1_790_000_000_000
TOML_FACTOR = 256  # tomllib matches a long number with a recursive regular expression
DEFAULTS = Defaults("origin", "event")


@cache
def in_vectors() -> tuple[bytes, ...]:
    """Every byte string in hex in the vectors that may be an object."""
    texts: set[str] = set()
    for path in sorted(VECTORS.rglob("*.json")):
        texts |= set(re.findall(r'"((?:[0-9a-f]{2}){5,20000})"', path.read_text("utf-8")))
    return tuple(bytes.fromhex(text) for text in sorted(texts))


def saved(name: str) -> list[bytes]:
    """The files of a folder of the corpus."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def accepted(
    decode: Callable[[bytes], object], candidates: "tuple[bytes, ...] | list[bytes]", most: int = 12
) -> list[bytes]:
    """The first candidates that a decoder accepts."""
    found: list[bytes] = []
    for data in candidates:
        with suppress(Malformed, Unverified, Refused, VeilError):
            decode(data)
            found.append(data)
        if len(found) == most:
            break
    return found


def anything(_: object, __: bytes) -> None:
    """Accepted input that has no encoder of its own."""


# Wire objects outside of the core.


def outer_wire() -> list[type[Wire]]:
    """All wire objects of veen outside of the core, the command line and the benchmarks."""
    for module in pkgutil.walk_packages(veen.__path__, "veen."):
        if not re.match(r"veen\.(cli|bench|selftest|hub\.signer_process)(\.|$)", module.name):
            importlib.import_module(module.name)
    found, pending = set[type[Wire]](), [Wire]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        named = getattr(sys.modules[cls.__module__], cls.__name__, None)
        if cls.__module__.startswith("veen.") and named is cls and hasattr(cls, "LAYOUT"):
            found.add(cls)
    return sorted(found - set(ALL_WIRE), key=lambda cls: (cls.__module__, cls.__name__))


def wire_seeds(cls: type[Wire]) -> list[bytes]:
    """Valid encodings: made from the table if no rule beyond it rejects them, and found in the vectors."""
    made = list[bytes]()
    for sample in (fullest, barest):
        with suppress(AssertionError, ValueError):
            made.append(sample(cls).encode())
    made += accepted(cls.decode, in_vectors(), 4)
    return made or accepted(cls.decode, parts_of_bundles(), 4) or [b"\xa0"]


@cache
def parts_of_bundles() -> tuple[bytes, ...]:
    """Every array and map in the bundles of the vectors."""
    found = [data[start:end] for data in bundles() for start, _, end in cbor_spans(data) if data[start] >> 5 in (4, 5)]
    return tuple(sorted(set(found)))


def wire_json_seeds(cls: type[Wire]) -> list[bytes]:
    return [wire_json.encode(cls.decode(data)) for data in wire_seeds(cls) if accepted(cls.decode, [data])] or [b"{}"]


def wire_decoders() -> Iterator[Decoder]:
    for cls in outer_wire():
        yield cbor_decoder(cls.__name__, cls.decode, is_the_one_encoding, partial(wire_seeds, cls))


def facts_seeds() -> list[bytes]:
    return wire_json_seeds(rules.FactsFile)


# Small formats of the core and the client.


def header_seeds(cls: type[Wire], prefix: str) -> list[bytes]:
    return [(prefix + sample(cls).encode().hex()).encode() for sample in (fullest, barest)]


def same_header(found: UploadProof | ReadProof | PowCookie, data: bytes) -> None:
    shown = found.header() if isinstance(found, UploadProof | ReadProof) else found.encode().hex()
    assert shown.lower() == data.decode().lower()


def same_event(event: admin.Event, data: bytes) -> None:
    assert admin.write_event(event) == data


def event_seeds() -> list[bytes]:
    revoked, empowered = admin.Revocation, admin.Authority
    return [
        admin.write_event(one) for one in (fullest(revoked), barest(revoked), fullest(empowered), barest(empowered))
    ]


def same_sequence(found: tuple[Wire, ...], data: bytes) -> None:
    assert b"".join(one.encode() for one in found) == data


def same_canonical(value: Any, data: bytes) -> None:
    assert canonical_json.encode(value) == data


def texts(decode: Callable[[str], Any]) -> Callable[[bytes], Any]:
    """A decoder of text as a decoder of bytes."""

    def decode_bytes(data: bytes) -> Any:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise Malformed("text", "not UTF-8") from None
        return decode(text)

    return decode_bytes


def submitted(data: bytes) -> bytes:
    return submit_api.from_json(data)


def submit_seeds() -> list[bytes]:
    messages = accepted(Msg.decode, in_vectors(), 3)
    return [b'{"ver":1,"msg":' + wire_json.encode(Msg.decode(message)) + b"}" for message in messages]


def core_decoders() -> Iterator[Decoder]:
    settings = json_decoder(
        "hub configuration",
        in_file("hub.toml", lambda path: hub_settings.config(FOLDER, {}, path, None)),
        anything,
        partial(saved, "hub-config"),
        Malformed,
        Unavailable,
        Misuse,
        entry="veen.cli.hub.hub_settings:config",
    )
    yield replace(settings, memory_factor=TOML_FACTOR)
    upload, cookie = partial(header_seeds, UploadProof, "veen-upload "), partial(header_seeds, PowCookie, "")
    yield raw_decoder(
        "upload proof header",
        texts(UploadProof.from_header),
        same_header,
        upload,
        entry="veen.core.attachment:UploadProof.from_header",
    )
    yield raw_decoder(
        "read proof header",
        texts(ReadProof.from_header),
        same_header,
        partial(header_seeds, ReadProof, "veen-read "),
        entry="veen.core.read_proof:ReadProof.from_header",
    )
    yield raw_decoder(
        "proof of work header",
        texts(PowCookie.from_header),
        same_header,
        cookie,
        entry="veen.core.proof_of_work:PowCookie.from_header",
    )
    tokens = partial(accepted, cap_token.decode_capability, in_vectors())
    yield cbor_decoder(
        "capability",
        cap_token.decode_capability,
        is_the_one_encoding,
        tokens,
        entry="veen.core.cap_token:decode_capability",
    )
    yield raw_decoder(
        "capability file",
        partial(capabilities.decode_capabilities, what="file"),
        same_sequence,
        tokens,
        Malformed,
        Unverified,
        entry="veen.client.capabilities:decode_capabilities",
    )
    yield raw_decoder(
        "sequence of messages",
        partial(cbor_sequence.decode, Msg),
        same_sequence,
        partial(accepted, Msg.decode, in_vectors()),
        entry="veen.client.cbor_sequence:decode",
    )
    yield raw_decoder("admin event", admin.read_event, same_event, event_seeds, entry="veen.core.admin:read_event")
    yield raw_decoder(
        "registered stream",
        control_stream.RegisteredStream.decode,
        anything,
        lambda: [bytes(32)],
        entry="veen.core.control_stream:RegisteredStream.decode",
    )
    plain = partial(saved, "json")
    yield json_decoder(
        "canonical JSON",
        partial(canonical_json.decode, what="text"),
        same_canonical,
        plain,
        entry="veen.core.canonical_json:decode",
    )
    yield json_decoder(
        "plain JSON",
        partial(canonical_json.parse, what="text"),
        anything,
        plain,
        entry="veen.core.canonical_json:parse",
    )
    yield json_decoder(
        "submit request in JSON", submitted, anything, submit_seeds, Refused, entry="veen.hub.submit_api:from_json"
    )
    yield json_decoder(
        "hub status",
        lambda data: HubStatus.read(strict_json.decode(data, "status")),
        anything,
        partial(saved, "hub-status"),
        Malformed,
        Unverified,
        entry="veen.client.trust:HubStatus.read",
    )


# Evidence, bundles and QR codes.


def evidence_seeds() -> list[bytes]:
    return saved("evidence")


def bundles() -> list[bytes]:
    return [bytes.fromhex(one["cbor"]) for one in json.loads((VECTORS / "bundle.json").read_bytes())["bundles"]]


def bundle_hub() -> set[bytes]:
    return {bytes.fromhex(json.loads((VECTORS / "bundle.json").read_bytes())["hub_id"])}


def same_base45(found: bytes, data: bytes) -> None:
    assert qr.encode(found).encode() == data


def joined(data: bytes) -> bytes:
    return qr.join(data.decode("utf-8", "replace").splitlines())


def qr_seeds() -> list[bytes]:
    return ["\n".join(qr.split(bytes(range(100)), size)).encode() for size in (30, 60, 200)]


def carried_decoders() -> Iterator[Decoder]:
    yield cbor_decoder(
        "evidence",
        evidence.verify,
        anything,
        evidence_seeds,
        Malformed,
        Unverified,
        entry="veen.client.evidence:verify",
    )
    yield cbor_decoder("bundle", bundle.decode, is_the_one_encoding, bundles, entry="veen.bridge.bundle:decode")
    yield cbor_decoder(
        "verified bundle",
        partial(bundle.verify, trusted=bundle_hub()),
        anything,
        bundles,
        Unverified,
        entry="veen.bridge.bundle:verify",
    )
    yield raw_decoder(
        "base45",
        texts(qr.decode),
        same_base45,
        lambda: [qr.encode(bytes(range(n))).encode() for n in (0, 1, 30, 31)],
        entry="veen.bridge.qr:decode",
    )
    yield raw_decoder("QR parts", joined, anything, qr_seeds, entry="veen.bridge.qr:join")


# Queries, tables and reports.


def normalised(data: bytes) -> Any:
    return descriptor.normalise(descriptor.parse(data), "0" * 32)


def is_normal(found: Any, _: bytes) -> None:
    assert descriptor.decode(found.text()) == found


def same_text(found: Any, data: bytes) -> None:
    assert found.text().encode() == data


def decoded_descriptors() -> list[bytes]:
    return [normalised(data).text().encode() for data in saved("query")]


def in_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """A decoder of a file as a decoder of bytes."""

    def decode(data: bytes) -> Any:
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)
        return read(path)

    return decode


def same_report(found: Any, data: bytes) -> None:
    assert audit_report.encode(found) == data


def query_decoders() -> Iterator[Decoder]:
    asked = partial(saved, "query")
    yield json_decoder("query request", normalised, is_normal, asked, Refused, entry="veen.query.descriptor:parse")
    yield json_decoder(
        "query descriptor",
        texts(descriptor.decode),
        same_text,
        decoded_descriptors,
        entry="veen.query.descriptor:decode",
    )
    yield json_decoder(
        "result digest",
        texts(ResultDigest.decode),
        anything,
        partial(saved, "result-digest"),
        entry="veen.query.digest:ResultDigest.decode",
    )
    yield json_decoder(
        "stored query",
        partial(QueryJob.decode, what="query"),
        anything,
        partial(saved, "query-job"),
        entry="veen.query.query_store:QueryJob.decode",
    )
    yield json_decoder(
        "query tokens",
        in_file("tokens.json", lambda path: PolicyBook(path).principals()),
        anything,
        partial(saved, "query-tokens"),
        entry="veen.query.policy:PolicyBook.principals",
    )
    yield json_decoder(
        "table commit", commit.decode, anything, partial(saved, "json"), entry="veen.pipeline.tables.commit:decode"
    )
    yield json_decoder(
        "event in JSON",
        texts(decoder.from_json),
        anything,
        partial(saved, "json"),
        entry="veen.pipeline.decoding.decoder:from_json",
    )
    yield json_decoder(
        "audit report",
        audit_report.decode,
        same_report,
        lambda: [audit_report.encode({"kind": audit_report.KIND})],
        entry="veen.pipeline.audit.audit_report:decode",
    )
    yield json_decoder(
        "operation facts",
        rules.read,
        anything,
        facts_seeds,
        Malformed,
        Unverified,
        entry="veen.overlays.operations.rules:read",
    )
    yield cbor_decoder(
        "embedded body",
        operation_events.decode,
        anything,
        partial(accepted, operation_events.decode, in_vectors()),
        entry="veen.overlays.operations.operation_events:decode",
    )


# Recorded events.


def exported(content_type: str) -> Callable[[bytes], Any]:
    """Decode a request and make the events; each must be an event that can be stored."""

    def decode(data: bytes) -> Any:
        return otlp.export(otlp.decode(data, content_type), data, DEFAULTS, NOW_MS)

    return decode


def otlp_json() -> list[bytes]:
    return saved("otlp")


def otlp_binary() -> list[bytes]:
    made: list[bytes] = []
    for data in otlp_json():
        request: ExportLogsServiceRequest = otlp.decode(data, otlp.JSON)
        made.append(request.SerializeToString())
    return made


def recorder_decoders() -> Iterator[Decoder]:
    refused = Malformed, otlp.RequestTooLarge
    yield raw_decoder(
        "OTLP protobuf", exported(otlp.PROTOBUF), anything, otlp_binary, *refused, entry="veen.recorder.otlp:decode"
    )
    yield json_decoder(
        "OTLP JSON", exported(otlp.JSON), anything, otlp_json, *refused, entry="veen.recorder.otlp:decode"
    )
    yield raw_decoder(
        "syslog", syslog.parse, anything, partial(saved, "syslog"), syslog.NotSyslog, entry="veen.recorder.syslog:parse"
    )
    yield raw_decoder(
        "syslog event",
        lambda data: syslog.event_of(data, DEFAULTS, NOW_MS),
        anything,
        partial(saved, "syslog"),
        entry="veen.recorder.syslog:event_of",
    )
    yield json_decoder(
        "line of a JSON log",
        lambda data: json_lines.event_of(data, DEFAULTS, NOW_MS),
        anything,
        json_log_lines,
        entry="veen.recorder.json_lines:event_of",
    )


def json_log_lines() -> list[bytes]:
    found = (
        {"subject_id": "a", "event_type": "b", "event_time": 1_790_000_000_000, "origin": "c", "payload": {"d": [1]}},
        {"@timestamp": "2026-01-02T03:04:05.678Z", "level": "info", "message": "text", "n": [1.5, None, True]},
        {"ts": 1790000000.25, "time": "not a time", "payload": {}, "more": {"nested": {"deep": "\u00e9\ud83d\ude00"}}},
    )
    return [json.dumps(one).encode() for one in found]


def anchor_file_lines() -> list[bytes]:
    """Files of one to three lines."""
    with tempfile.TemporaryDirectory() as folder:
        log, made = FileLog(Path(folder) / "anchors"), list[bytes]()
        for number in range(1, 4):
            asyncio.run(log.publish(fullest(AnchorStatement) if number % 2 else barest(AnchorStatement)))
            made.append(log.path.read_bytes())
        return made


def is_a_chain(lines: "list[anchor_backends._Line]", data: bytes) -> None:
    """What was accepted is the text of its lines. A line may end as any line of text does."""
    assert b"".join(line.text() for line in lines).splitlines() == data.splitlines()


def anchor_decoders() -> Iterator[Decoder]:
    yield raw_decoder(
        "lines of an anchor file",
        anchor_backends._read_lines,
        is_a_chain,
        anchor_file_lines,
        Unverified,
        entry="veen.bridge.anchor_backends:_read_lines",
    )


# Storage, as fsck reads it.


def entries() -> list[bytes]:
    return saved("chunk")


def same_entries(found: tuple[frame.LogEntry, ...], data: bytes) -> None:
    assert b"".join(frame.write(one.label, one.stream_seq, one.msg, one.receipt)[0] for one in found) == data


def packed() -> list[bytes]:
    return [b"".join(chunk_reader.pack(data, 3)) for data in entries()]


def unpacked(data: bytes) -> bytes:
    chunk = chunk_reader.PackedChunk(data)
    chunk.check_digest()
    return b"".join(block for block, _ in chunk.blocks())


def journal_read(path: Path) -> list[Any]:
    return list(journal.read(path.parent, 0, every_group=True))


def journals() -> list[bytes]:
    return saved("journal")


def marks() -> list[bytes]:
    folder = FOLDER / "mark-seed" / "journal"
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for mark in (journal_mark.Mark(1), journal_mark.Mark(3, 3, 4096, 9)):
        journal_mark.create(Disk(), folder, mark)
        made.append(journal_mark.path_of(folder).read_bytes())
    return made


def storage_decoders() -> Iterator[Decoder]:
    yield raw_decoder(
        "chunk", lambda data: tuple(frame.read_all(data)), same_entries, entries, entry="veen.storage.frame:read"
    )
    yield raw_decoder(
        "entry by content", frame.read_by_content, anything, entries, entry="veen.storage.frame:read_by_content"
    )
    yield raw_decoder("packed chunk", unpacked, anything, packed, entry="veen.storage.chunk_reader:PackedChunk")
    yield raw_decoder(
        "journal segment",
        in_file("journal/00000000000000000001.wal", journal_read),
        anything,
        journals,
        entry="veen.storage.journal:read",
    )
    yield raw_decoder(
        "journal mark",
        in_file("marked.mark", lambda path: journal_mark.read(path.with_suffix(""))),
        anything,
        marks,
        entry="veen.storage.journal_mark:read",
    )


# VEIL.

KEY = SigningKey(bytes(range(32)))
PLACES = ("tls://127.0.0.1:4433", "quic://[::1]:1", "file:///tmp/veil")


def veil_cbor(
    name: str, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], seeds: list[bytes], entry: str
) -> Decoder:
    def same(found: Any, data: bytes) -> None:
        assert encode(found) == data

    return cbor_decoder(name, decode, same, lambda: seeds, VeilError, entry=entry)


def contact() -> Contact:
    places = tuple(map(Endpoint.parse, PLACES))
    return Contact.make(KEY, bytes(32), bytes(32), 1_790_000_000_000, "Ada", places)


def parcel(data: bytes) -> Any:
    return file_lane.unpack(data, bytes(32))


def is_encoded_by(decoder: veil_tests.Decoder, _: Any, data: bytes) -> None:
    assert veil_tests.check_canonical(decoder, data)


def is_the_set(found: Any, data: bytes) -> None:
    assert frames.encode_set(found) == data


def veil_decoders() -> Iterator[Decoder]:
    for name, one in veil_tests.DECODERS.items():
        check = partial(is_encoded_by, one)
        made = raw_decoder if name == "padding" else cbor_decoder  # what is padded may be anything
        yield made(
            f"VEIL {name}", one.decode, check, partial(list, [one.good]), VeilError, entry=veil_entry(one.decode)
        )
    yield veil_cbor(
        "VEIL contact", Contact.decode, Contact.encode, [contact().encode()], "veil.runtime.contacts:Contact.decode"
    )
    yield raw_decoder(
        "VEIL contact text",
        texts(Contact.from_text),
        anything,
        lambda: [contact().text().encode()],
        Malformed,
        VeilError,
        entry="veil.runtime.contacts:Contact.from_text",
    )
    yield raw_decoder(
        "VEIL endpoint",
        texts(Endpoint.parse),
        anything,
        lambda: [place.encode() for place in PLACES],
        Malformed,
        VeilError,
        entry="veil.lanes.lane:Endpoint.parse",
    )
    yield raw_decoder(
        "VEIL parcel",
        parcel,
        anything,
        lambda: [file_lane.pack(KEY, bytes(32), [b"a", b"frame"])],
        VeilError,
        entry="veil.lanes.file_lane:unpack",
    )
    yield raw_decoder(
        "VEIL hello",
        Hello.decode,
        anything,
        lambda: [b"\x01" + bytes(32)],
        VeilError,
        entry="veil.lanes.session:Hello.decode",
    )
    of = veil_tests.SMALL_OBJECT.of
    inventory = frames.Inventory((frames.InventoryEntry(of, frames.all_indices(of)),))
    shown: list[frames.Control] = [inventory, frames.Want(bytes(32), 3, 2), frames.Summary(7, bytes(8), 4, bytes(64))]
    shown_frames = [frames.encode(one) for one in shown]
    yield veil_cbor(
        "VEIL frame", frames.decode, frames.encode, accepted(frames.decode, shown_frames), "veil.node.frames:decode"
    )
    encoded = frames.encode_set(of)
    yield raw_decoder(
        "VEIL shard set",
        frames.decode_set,
        is_the_set,
        partial(list, [encoded]),
        VeilError,
        entry="veil.node.frames:decode_set",
    )
    endorsed = trust.encode_endorsement(bytes(32), 5)
    yield veil_cbor(
        "VEIL endorsement",
        trust.decode_endorsement,
        lambda one: trust.encode_endorsement(*one),
        [endorsed],
        "veil.node.trust:decode_endorsement",
    )
    feed = Subscription.feed(bytes(32), 1)
    yield veil_cbor(
        "VEIL subscription",
        Subscription.decode,
        Subscription.encode,
        [feed.encode()],
        "veil.node.subscriptions:Subscription.decode",
    )
    item = Item(Destination.feed(1), False, True, 5.0, b"payload")
    yield cbor_decoder(
        "VEIL item", Item.decode, anything, lambda: [item.encode()], VeilError, entry="veil.node.outbox:Item.decode"
    )
    record = ParcelRecord(of, veil_tests.SMALL_OBJECT.encoded, b"", 5.0, (1, 2))
    yield cbor_decoder(
        "VEIL parcel record",
        ParcelRecord.decode,
        anything,
        lambda: [record.encode()],
        VeilError,
        entry="veil.node.outbox:ParcelRecord.decode",
    )
    secret = GroupSecret.decode(veil_tests.DECODERS["group secret"].good)
    invitation = Invitation("doors", secret).encode()
    yield raw_decoder(
        "VEIL invitation",
        Invitation.decode,
        anything,
        lambda: [invitation],
        VeilError,
        entry="veil.runtime.groups:Invitation.decode",
    )
    settings = in_file("veil/settings.json", lambda path: load_settings(DataDirectory(path.parent)))
    yield json_decoder(
        "VEIL settings",
        settings,
        anything,
        partial(saved, "veil-settings"),
        VeilError,
        entry="veil.runtime.data_directory:load_settings",
    )
    keyring = in_file("veil/identity.json", lambda path: load_keyring(DataDirectory(path.parent)))
    yield json_decoder(
        "VEIL identity",
        keyring,
        anything,
        partial(saved, "veil-identity"),
        VeilError,
        entry="veil.runtime.groups:load_keyring",
    )


def veil_entry(decode: Callable[..., Any]) -> str:
    return f"{decode.__module__}:{decode.__qualname__}"


# Objects with a rule beyond their table, and without a vector: only random input is decoded, which they reject.
WITHOUT_SEEDS = {
    *(
        "Advertised",
        "Answered",
        "CaughtRow",
        "DirectoryQuery",
        "EventFault",
        "EventOrigin",
        "LabelState",
        "PendingCall",
    ),
    *("ProducerKit", "StateRow", "StateSnapshot", "Tip", "Wallet"),
}


def outer_decoders() -> Iterator[Decoder]:
    yield from wire_decoders()
    yield from core_decoders()
    yield from carried_decoders()
    yield from query_decoders()
    yield from recorder_decoders()
    yield from anchor_decoders()
    yield from storage_decoders()
    yield from veil_decoders()
