"""`veen label-class` and `veen schema`: what is kept where, and in what form."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.realms import REALM, Realm, realm
from tests.cli.runner import Veen
from tests.cli.town import STREAM
from veen.client import BlockingClient, ClientDir, Pin
from veen.core import admin, naming
from veen.core.hashing import h
from veen.overlays.admin import LABEL_CLASSES, SCHEMAS, AuthorityEvent, LabelClass, RevocationEvent, SchemaDescriptor
from veen.state.state_proof import verify_state

LABEL = "5b" * 32
NAME = "door.report.v1"


@pytest.fixture
def town(veen: Veen, tmp_path: Path) -> Iterator[Realm]:
    with realm(veen, tmp_path) as found:
        yield found


def label_of(town: Realm) -> str:
    return naming.label(naming.routing_key(bytes.fromhex(town.hub_id)), naming.stream_id(STREAM), 0).hex()


def test_a_stream_is_classified_by_its_label_and_hints_follow(town: Realm) -> None:
    said = town.says("label-class", "set", STREAM, "--class", "wallet", "--sensitivity", "high", "--retention", 60)
    assert said.facts()["label"] == label_of(town)
    shown = town.does("reader", "label-class", "show", STREAM).facts()
    assert (shown["class"], shown["sensitivity"], shown["retention_hint"]) == ("wallet", "high", "60")
    assert (shown["pad_block"], shown["rate"], shown["retention_sec"]) == ("1024", "default", "60")
    assert town.reads("label-class", "show", "--label", label_of(town)).facts() == shown


def test_where_labels_change_with_time_a_class_is_of_one_of_them(veen: Veen, tmp_path: Path) -> None:
    with realm(veen, tmp_path, epoch_sec=86_400) as town:
        town.says("label-class", "set", STREAM, "--class", "log")
        (said,) = town.reads("label-class", "list", "--json").json()["labels"]
        then = town.reads("label-class", "show", STREAM, "--when", said["hub_ts"], "--json").json()
        assert (then["label"], then["class"]) == (said["label"], "log")
        later = town.reads("label-class", "show", STREAM, "--when", said["hub_ts"] + 86_400, "--json").json()
        assert (later["label"] == said["label"], later["class"]) == (False, None)


def test_a_label_without_a_class_is_left_to_the_hub(town: Realm) -> None:
    shown = town.does("reader", "label-class", "show", "--label", LABEL, "--json").json()
    assert (shown["class"], shown["pad_block"], shown["rate"]) == (None, None, "default")


def test_the_last_class_counts_and_the_one_before_is_still_there_to_be_asked_for(town: Realm) -> None:
    town.says("label-class", "set", "--label", LABEL, "--class", "bulk")
    town.says("label-class", "set", "--label", LABEL, "--class", "own\x1bword")
    assert town.does("reader", "label-class", "list").out.split("\t")[:2] == [LABEL, "own\\x1bword"]
    before = town.reads("label-class", "show", "--label", LABEL, "--at", 1, "--json").json()
    assert (before["class"], before["rate"]) == ("bulk", "tighter")
    listed = town.reads("label-class", "list", "--json").json()["labels"]
    assert [(one["label"], one["class"], one["stream_seq"]) for one in listed] == [(LABEL, "own\x1bword", 2)]


def test_the_class_of_a_label_can_be_proved(town: Realm, tmp_path: Path) -> None:
    town.says("label-class", "set", "--label", LABEL, "--class", "log")
    file = tmp_path / "class.evidence"
    shown = town.does("reader", "label-class", "show", "--label", LABEL, "--prove", "--out", file, "--json").json()
    stream = admin.label_class_stream(naming.realm_id(REALM))
    found = verify_state(file.read_bytes(), LABEL_CLASSES, stream, bytes.fromhex(LABEL))
    assert found.state_hash.hex() == shown["state_hash"]
    assert town.tries("reader", "label-class", "show", STREAM, "--prove").status == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "--class", "log"),
        ("set", STREAM, "--label", LABEL, "--class", "log"),
        ("set", STREAM),
        ("set", STREAM, "--class", ""),
        ("set", STREAM, "--class", "log", "--retention", "-1"),
        ("set", "--label", "5b", "--class", "log"),
        ("show",),
    ],
)
def test_a_classification_names_one_label_and_one_class(town: Realm, arguments: tuple[str, ...]) -> None:
    ran = town.tries("admin", "label-class", *arguments)
    assert ran.status == 2
    assert ran.error


def test_a_schema_is_registered_and_found_by_name_and_id(town: Realm) -> None:
    said = town.says("schema", "register", NAME, "--version", "v1", "--doc", "https://example.org/d", "--owner", LABEL)
    assert said.facts()["schema_id"] == naming.schema_id(NAME).hex()
    assert said.err == ""
    by_name = town.does("reader", "schema", "show", NAME, "--json").json()
    assert (by_name["version"], by_name["doc_url"], by_name["owner"], by_name["name_fits"]) == (
        "v1", "https://example.org/d", LABEL, True,
    )  # fmt: skip
    assert town.reads("schema", "show", naming.schema_id(NAME).hex(), "--json").json()["name"] == NAME
    assert [one["name"] for one in town.reads("schema", "list", "--json").json()["schemas"]] == [NAME]


def test_an_id_that_does_not_follow_from_the_name_is_taken_with_a_word_about_it(town: Realm) -> None:
    ran = town.says("schema", "register", NAME, "--version", "v1", "--id", LABEL)
    assert "does not follow from the name" in ran.err
    assert town.does("reader", "schema", "show", LABEL, "--json").json()["name_fits"] is False


def test_two_schemas_of_one_name_are_both_told_of(town: Realm) -> None:
    town.says("schema", "register", NAME, "--version", "v1", "--id", LABEL)
    assert f"another schema has that name: {LABEL}" in town.says("schema", "register", NAME, "--version", "v1").err
    assert "is called the same" in town.does("reader", "schema", "show", NAME).err


def test_the_ids_of_operation_profiles_fit_their_names(town: Realm) -> None:
    schema = h(b"veen/schema:access.grant.v1").hex()
    assert town.says("schema", "register", "access.grant.v1", "--version", "v1", "--id", schema).err == ""


def test_what_is_registered_again_is_another_version_and_the_first_stays_in_the_past(town: Realm) -> None:
    town.says("schema", "register", NAME, "--version", "v1")
    town.says("schema", "register", NAME, "--version", "v2")
    assert town.does("reader", "schema", "show", NAME).facts()["version"] == "v2"
    assert town.reads("schema", "show", NAME, "--at", 1).facts()["version"] == "v1"


def test_a_schema_that_is_not_registered_is_not_there_and_its_readers_are_named(town: Realm) -> None:
    ran = town.tries("reader", "schema", "show", "kv.delete.v1")
    assert ran.status == 6
    assert "no schema 'kv.delete.v1' is registered" in ran.error
    assert "kv read it" in ran.err


def test_a_registration_can_be_proved(town: Realm, tmp_path: Path) -> None:
    town.says("schema", "register", NAME, "--version", "v1")
    file = tmp_path / "schema.evidence"
    shown = town.reads("schema", "show", NAME, "--prove", "--out", file, "--json").json()
    stream = admin.schema_meta_stream(naming.realm_id(REALM))
    found = verify_state(file.read_bytes(), SCHEMAS, stream, naming.schema_id(NAME))
    assert found.state_hash.hex() == shown["state_hash"]


def test_the_schemas_that_a_stream_uses_are_held_against_the_registry(town: Realm) -> None:
    for schema in (NAME, "door.other.v1", NAME):
        leave = ("--cap", town.root / "writer.cap")
        assert town.tries("writer", "send", "--stream", STREAM, "--body", "x", "--schema", schema, *leave).status == 0
    town.says("schema", "register", NAME, "--version", "v1")
    expected = [
        (naming.schema_id(NAME).hex(), NAME, True, 2, 1, 3),
        (naming.schema_id("door.other.v1").hex(), None, False, 1, 2, 2),
    ]
    for ran in (
        town.does("reader", "schema", "check", STREAM, "--json"),
        town.reads("schema", "check", STREAM, "--json", "--no-cache"),
    ):
        assert [
            (one["schema_id"], one["name"], one["registered"], one["count"], one["first"]["stream_seq"],
             one["last"]["stream_seq"])
            for one in ran.json()["schemas"]
        ] == expected  # fmt: skip
    early = town.reads("schema", "check", STREAM, "--at", 1, "--json").json()["schemas"]
    assert [one["count"] for one in early] == [1]
    assert "not registered" in town.does("reader", "schema", "check", STREAM).out


def test_a_stream_is_checked_only_by_who_can_read_it(town: Realm) -> None:
    ran = town.tries("writer", "schema", "check", STREAM)
    assert ran.status == 6
    assert "no reader key" in ran.error


@pytest.mark.parametrize(
    "arguments",
    [("register", NAME), ("register", "", "--version", "v1"), ("register", NAME, "--version", "v1", "--id", "5b")],
)
def test_a_registration_has_a_name_a_version_and_a_whole_id(town: Realm, arguments: tuple[str, ...]) -> None:
    ran = town.tries("admin", "schema", *arguments)
    assert ran.status == 2
    assert ran.error


@pytest.mark.parametrize(
    ("command", "stream", "schema"),
    [
        ("revoke", admin.revocation_stream, RevocationEvent.SCHEMA),
        ("authority", admin.fed_admin_stream, AuthorityEvent.SCHEMA),
        ("label-class", admin.label_class_stream, LabelClass.SCHEMA),
        ("schema", admin.schema_meta_stream, SchemaDescriptor.SCHEMA),
    ],
)
def test_what_makes_no_sense_on_a_stream_of_the_realm_is_listed_and_stops_nobody(
    town: Realm, command: str, stream: Callable[[bytes], bytes], schema: bytes
) -> None:
    assert f"every entry that veen {command} reads was taken" in town.does("reader", command, "faults").err
    stream_id = stream(naming.realm_id(REALM))
    with ClientDir.open(town.root / "admin") as folder:
        folder.stream_keys.import_secret(stream_id.hex(), admin.reader_key(stream_id))
        folder.caps.add_all((town.root / "admin.cap").read_bytes())
        with BlockingClient(f"http://127.0.0.1:{town.hub.port}", folder, pin=Pin.parse(town.hub_id)) as client:
            client.send(stream_id, b"no map", schema=schema)
    (fault,) = town.does("reader", command, "faults", "--json").json()["faults"]
    assert (fault["stream_seq"], fault["kind"]) == (1, "malformed")
    assert town.reads(command, "faults").out.startswith("1\tmalformed\t")
    assert town.reads(command, "faults", "--at", 0).out == ""
    assert town.reads(command, "list").status == 0
