"""Every function that decodes input from outside has a fuzzer, or a reason why it needs none."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.test_decoders import DECODERS
from veen.core.cbor import Wire

SOURCE = Path(__file__).parents[1] / "src"
NAMES = re.compile(
    r"_?(decode|parse|unpack|from_header|from_text|from_json|read_letter|read_event|read_anchor|read_lines|event_of)"
    r"(_[a-z_]+)?$"
)

# Where other tests fuzz the same bytes, or who made them.
OTHERS = {
    "veen.core.cbor": "the parts of Wire.decode and of `value`",
    "veen.core.canonical_json": "the functions with names that start otherwise are encoders",
    "veen.core.msg:Msg": "Msg, among the wire objects",
    "veen.core.wire_json": "every wire object `as JSON`",
    "veen.core.strict_json:decode": "JSON text",
    "veen.core.proof:decode_head": "Receipt and Checkpoint",
    "veen.hub.admission_rules:parse": "tests/hub/test_http_fuzz.py, with /v1/submit",
    "veen.hub.responses:decode_request": "tests/hub/test_http_fuzz.py, with every endpoint",
    "veen.client.cbor_sequence:decode_each": "sequence of messages and capability file",
    "veen.client.trust:Pin.parse": "an option of a command; the files that it names are HubIdentity",
    "veen.client.writer_keys": "rows of the client's own database; tests/client/test_client_rows.py damages them",
    "veen.core.admin:event_of": "the events, among the wire objects",
    "veen.core.control_stream:event_of": "the events, among the wire objects",
    "veen.bridge.zone_roles:parse": "an option of a command",
    "veen.overlays": "tests/overlays/test_bodies.py; states and summaries are made of wire objects",
    "veen.pipeline.audit": "messages and events that the hub accepted, among the wire objects",
    "veen.pipeline.decoding.decoder:_decode_event": "the other decoders of the module",
    "veen.pipeline.engine": "an option of a command, and rows that our own processes exchange",
    "veen.pipeline.tables": "files of our own tables, which a digest covers; table commit",
    "veen.query.policy:_decode": "query policy",
    "veen.recorder.spool:_decode": "files of the recorder itself, with a checksum",
    "veen.storage.chunk_reader:PackedChunk._unpack": "packed chunk",
    "veen.query.descriptor:parse_time": "query request",
    "veen.storage.index": "rows of the hub's own index; tests/hub/test_bad_index.py damages them",
    "veen.storage.paths:ChunkName.parse": "a regular expression over a file name",
    "veen.state": "state snapshots, among the wire objects",
    "veil.codec": "VEIL native object and shard",
    "veil.dialect": "VEIL dialect object, shard, batch, ack and shard request",
    "veil.assembly:decode_batch": "VEIL batch",
    "veil.encryption": "VEIL letter and group secret",
    "veil.erasure_code:decode": "rows whose hashes the codec has compared",
    "veil.node.frames": "the parts of frames:decode and frames:decode_set",
    "veil.node.node_events:Event.decode": "rows of the node's own store",
}


def stated() -> Iterator[str]:
    """Every function and method with the name of a decoder, as module:name."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if re.match(r"(veen\.(cli|bench|selftest)|veil\.(cli|sim)|plumbing|pyspark_veen)(\.|$)", module):
            continue
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and NAMES.fullmatch(node.name):
                yield f"{module}:{node.name}"
            if isinstance(node, ast.ClassDef):
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and NAMES.fullmatch(one.name):
                        yield f"{module}:{node.name}.{one.name}"


FUZZED = {decoder.entry for decoder in DECODERS if decoder.entry}


def is_excused(entry: str) -> bool:
    module, _, _ = entry.partition(":")
    parents = [module[:at] for at in range(len(module) + 1) if at == len(module) or module[at] == "."]
    return any(key in OTHERS for key in (*parents, entry, entry.rpartition(".")[0]))


def test_every_decoder_has_a_fuzzer_or_a_reason() -> None:
    found = set(stated())
    assert len(found) > 60
    assert sorted(entry for entry in found - FUZZED if not is_excused(entry)) == []


@pytest.mark.parametrize("entry", sorted(FUZZED))
def test_every_fuzzed_entry_exists(entry: str) -> None:
    module, _, name = entry.partition(":")
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


def test_every_reason_is_still_needed() -> None:
    entries = set(stated())
    unused = [key for key in OTHERS if not any(entry.startswith(key) for entry in entries)]
    assert unused == []


def test_every_wire_object_is_fuzzed() -> None:
    names = {decoder.name for decoder in DECODERS}
    pending, missing = [Wire], list[str]()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        module = importlib.import_module(cls.__module__)
        if cls.__module__.startswith("veen.") and getattr(module, cls.__name__, None) is cls and hasattr(cls, "LAYOUT"):
            missing += [cls.__name__] if cls.__name__ not in names else []
    assert missing == []
