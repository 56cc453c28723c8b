"""`veen label-class` and `veen schema`: classes of labels, and registered schemas."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.hub_fixture import STREAM
from tests.cli.overlay.realm_fixture import REALM, RealmFixture, realm
from tests.cli.runner import Veen
from tests.hub.client import TOKEN
from veen.client import BlockingClient, ClientDir, Pin
from veen.core import admin, naming
from veen.core.hashing import h
from veen.overlays.authority import AuthorityEvent
from veen.overlays.authorization import RevocationEvent
from veen.overlays.stream_catalog import LABEL_CLASSES, SCHEMAS, LabelClass, SchemaDescriptor
from veen.state.state_proof import verify_state

LABEL = "5b" * 32
NAME = "door.report.v1"


@pytest.fixture
def realm_hub(veen: Veen, tmp_path: Path) -> Iterator[RealmFixture]:
    with realm(veen, tmp_path) as found:
        yield found


def label_of(realm_hub: RealmFixture) -> str:
    return naming.label(naming.routing_key(bytes.fromhex(realm_hub.hub_id)), naming.stream_id(STREAM), 0).hex()


def test_a_stream_is_classified_by_its_label_and_hints_follow(realm_hub: RealmFixture) -> None:
    sent = realm_hub.run_as_admin(
        "label-class", "set", STREAM, "--class", "wallet", "--sensitivity", "high", "--retention", 60
    )
    assert sent.facts()["label"] == label_of(realm_hub)
    shown = realm_hub.run("reader", "label-class", "show", STREAM).facts()
    assert (shown["class"], shown["sensitivity"], shown["retention_hint"]) == ("wallet", "high", "60")
    assert (shown["pad_block"], shown["rate"], shown["retention_sec"]) == ("1024", "default", "60")
    assert realm_hub.run_offline("label-class", "show", "--label", label_of(realm_hub)).facts() == shown


Policies = dict[str, tuple[object, object, str]]
OPERATOR = {"VEEN_OPERATOR_TOKEN": TOKEN}


def set_policies(realm_hub: RealmFixture, *given: object) -> dict[str, str]:
    """What `veen retention set-classes` did for each label, with the administrator as the only writer who counts."""
    command = ("retention", "set-classes", "--receipts", "2h", "--writer", realm_hub.root / "admin", *given)
    rows = realm_hub.veen.done(*command, *realm_hub.options("reader"), "--json", env=OPERATOR).json()["labels"]
    return {one["label"]: one["policy"] for one in rows}


def policies(realm_hub: RealmFixture) -> Policies:
    rules = realm_hub.veen.done("retention", "show", *realm_hub.options("reader")[2:4], "--json").json()["rules"]
    return {one["scope"]: (one["payloads"], one["receipts"], one["class"]) for one in rules}


def classify(realm_hub: RealmFixture, label: str, class_: str, *hint: object) -> None:
    realm_hub.run_as_admin("label-class", "set", "--label", label, "--class", class_, *hint)


def set_by_operator(realm_hub: RealmFixture, *given: object) -> None:
    realm_hub.veen.done("retention", "set", *given, *realm_hub.options("reader")[2:4], env=OPERATOR)


def test_the_policies_of_labels_follow_from_their_classes(realm_hub: RealmFixture) -> None:
    label, other = label_of(realm_hub), "aa" * 32
    classify(realm_hub, label, "log", "--retention", 60)
    classify(realm_hub, LABEL, "bulk")
    classify(realm_hub, other, "user", "--retention", 36_000)
    assert set_policies(realm_hub) == {label: "set", LABEL: "no hint", other: "set"}
    kept = {f"label {label}": (60, 7200, "log"), f"label {other}": (36_000, 36_000, "user")}
    assert policies(realm_hub) == kept
    assert set_policies(realm_hub) == {label: "unchanged", LABEL: "no hint", other: "unchanged"}
    classify(realm_hub, label, "log", "--retention", 90)
    assert set_policies(realm_hub) == {label: "set", LABEL: "no hint", other: "unchanged"}
    assert policies(realm_hub) == kept | {f"label {label}": (90, 7200, "log")}
    ran = realm_hub.attempt("reader", "retention", "set-classes", "--writer", LABEL)
    assert (ran.status, ran.error) == (2, "VEEN_OPERATOR_TOKEN has no operator token")
    assert "--writer" in realm_hub.attempt("reader", "retention", "set-classes").err


def test_only_the_named_writers_decide_how_long_a_label_is_kept(realm_hub: RealmFixture) -> None:
    label, other = label_of(realm_hub), "aa" * 32
    stream = admin.label_class_stream(naming.realm_id(REALM)).hex()
    cap = realm_hub.root / "intruder.cap"
    subject = ("--issuer", realm_hub.root / "operator", "--subject", realm_hub.root / "writer", "--ttl", 3600)
    realm_hub.veen.done("cap", "issue", *subject, "--hub", realm_hub.data_dir, "--stream", stream, "--out", cap)
    classify(realm_hub, label, "log", "--retention", 36_000)
    for one in (label, other):
        event = ("label-class", "set", "--label", one, "--class", "log", "--retention", 0)
        realm_hub.run("writer", *event, "--cap", cap)
    command = ("retention", "set-classes", *realm_hub.options("reader"), "--json", "--writer")
    found = realm_hub.veen.done(*command, realm_hub.root / "admin", env=OPERATOR).json()["labels"]
    assert [(one["label"], one["payloads"], one["policy"]) for one in found] == [
        (label, 36_000, "set"),
        *((one, 0, "ignored: not a --writer") for one in sorted((label, other))),
    ]
    assert policies(realm_hub) == {f"label {label}": (36_000, "forever", "log")}
    intruder = found[1]["writer"]
    found = realm_hub.veen.done(*command, intruder, env=OPERATOR).json()["labels"]
    assert {(one["label"], one["policy"]) for one in found if one["writer"] == intruder} == {
        (label, "set"), (other, "set"),
    }  # fmt: skip


def test_a_policy_of_the_operator_is_replaced_only_on_request(realm_hub: RealmFixture) -> None:
    label = label_of(realm_hub)
    set_by_operator(realm_hub, "--stream", STREAM, "--payloads", "10y")
    set_by_operator(realm_hub, "--label", LABEL, "--payloads", "1y")
    before = policies(realm_hub)
    for one in (label, LABEL):
        classify(realm_hub, one, "log", "--retention", 60)
    kept = "kept: set by the operator"
    assert set_policies(realm_hub) == {label: kept, LABEL: kept}
    assert policies(realm_hub) == before
    assert set_policies(realm_hub, "--replace") == {label: "set", LABEL: "set"}
    after = policies(realm_hub)
    assert (after[f"label {label}"], after[f"label {LABEL}"]) == ((60, 7200, "log"), (60, 7200, "log"))


def test_a_policy_whose_class_lost_its_hint_is_reported_and_removed_on_request(realm_hub: RealmFixture) -> None:
    classify(realm_hub, LABEL, "log", "--retention", 60)
    assert set_policies(realm_hub) == {LABEL: "set"}
    classify(realm_hub, LABEL, "log")
    assert set_policies(realm_hub) == {LABEL: "kept: no class has this hint"}
    assert policies(realm_hub) == {f"label {LABEL}": (60, 7200, "log")}
    assert set_policies(realm_hub, "--replace") == {LABEL: "removed"}
    assert policies(realm_hub) == {}


def test_with_epochs_a_class_applies_to_one_label(veen: Veen, tmp_path: Path) -> None:
    with realm(veen, tmp_path, epoch_sec=86_400) as realm_hub:
        realm_hub.run_as_admin("label-class", "set", STREAM, "--class", "log")
        (sent,) = realm_hub.run_offline("label-class", "list", "--json").json()["labels"]
        then = realm_hub.run_offline("label-class", "show", STREAM, "--when", sent["hub_ts"], "--json").json()
        assert (then["label"], then["class"]) == (sent["label"], "log")
        later = realm_hub.run_offline("label-class", "show", STREAM, "--when", sent["hub_ts"] + 86_400, "--json").json()
        assert (later["label"] == sent["label"], later["class"]) == (False, None)


def test_a_label_without_a_class_has_default_hints(realm_hub: RealmFixture) -> None:
    shown = realm_hub.run("reader", "label-class", "show", "--label", LABEL, "--json").json()
    assert (shown["class"], shown["pad_block"], shown["rate"]) == (None, None, "default")


def test_the_last_class_counts_and_earlier_ones_are_shown_with_at(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin("label-class", "set", "--label", LABEL, "--class", "bulk")
    realm_hub.run_as_admin("label-class", "set", "--label", LABEL, "--class", "own\x1bword")
    assert realm_hub.run("reader", "label-class", "list").out.split("\t")[:2] == [LABEL, "own\\x1bword"]
    before = realm_hub.run_offline("label-class", "show", "--label", LABEL, "--at", 1, "--json").json()
    assert (before["class"], before["rate"]) == ("bulk", "tighter")
    listed = realm_hub.run_offline("label-class", "list", "--json").json()["labels"]
    assert [(one["label"], one["class"], one["stream_seq"]) for one in listed] == [(LABEL, "own\x1bword", 2)]


def test_the_class_of_a_label_can_be_proved(realm_hub: RealmFixture, tmp_path: Path) -> None:
    realm_hub.run_as_admin("label-class", "set", "--label", LABEL, "--class", "log")
    file = tmp_path / "class.evidence"
    shown = realm_hub.run("reader", "label-class", "show", "--label", LABEL, "--prove", "--out", file, "--json").json()
    stream = admin.label_class_stream(naming.realm_id(REALM))
    found = verify_state(file.read_bytes(), LABEL_CLASSES, stream, bytes.fromhex(LABEL))
    assert found.state_hash.hex() == shown["state_hash"]
    assert realm_hub.attempt("reader", "label-class", "show", STREAM, "--prove").status == 2


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
def test_a_classification_names_one_label_and_one_class(realm_hub: RealmFixture, arguments: tuple[str, ...]) -> None:
    ran = realm_hub.attempt("admin", "label-class", *arguments)
    assert ran.status == 2
    assert ran.error


def test_a_schema_is_registered_and_found_by_name_and_id(realm_hub: RealmFixture) -> None:
    sent = realm_hub.run_as_admin(
        "schema", "register", NAME, "--version", "v1", "--doc", "https://example.org/d", "--owner", LABEL
    )
    assert sent.facts()["schema_id"] == naming.schema_id(NAME).hex()
    assert sent.err == ""
    by_name = realm_hub.run("reader", "schema", "show", NAME, "--json").json()
    assert (by_name["version"], by_name["doc_url"], by_name["owner"], by_name["name_fits"]) == (
        "v1", "https://example.org/d", LABEL, True,
    )  # fmt: skip
    assert realm_hub.run_offline("schema", "show", naming.schema_id(NAME).hex(), "--json").json()["name"] == NAME
    assert [one["name"] for one in realm_hub.run_offline("schema", "list", "--json").json()["schemas"]] == [NAME]


def test_an_id_that_is_not_the_hash_of_the_name_is_accepted_with_a_warning(realm_hub: RealmFixture) -> None:
    ran = realm_hub.run_as_admin("schema", "register", NAME, "--version", "v1", "--id", LABEL)
    assert "is not the hash of the name" in ran.err
    assert realm_hub.run("reader", "schema", "show", LABEL, "--json").json()["name_fits"] is False


def test_two_schemas_of_one_name_are_both_shown(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin("schema", "register", NAME, "--version", "v1", "--id", LABEL)
    assert (
        f"another schema has the same name: {LABEL}"
        in realm_hub.run_as_admin("schema", "register", NAME, "--version", "v1").err
    )
    assert "has the same name" in realm_hub.run("reader", "schema", "show", NAME).err


def test_the_ids_of_operation_profiles_fit_their_names(realm_hub: RealmFixture) -> None:
    schema = h(b"veen/schema:access.grant.v1").hex()
    assert realm_hub.run_as_admin("schema", "register", "access.grant.v1", "--version", "v1", "--id", schema).err == ""


def test_a_second_registration_is_a_new_version_and_the_first_is_shown_with_at(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin("schema", "register", NAME, "--version", "v1")
    realm_hub.run_as_admin("schema", "register", NAME, "--version", "v2")
    assert realm_hub.run("reader", "schema", "show", NAME).facts()["version"] == "v2"
    assert realm_hub.run_offline("schema", "show", NAME, "--at", 1).facts()["version"] == "v1"


def test_an_unregistered_schema_is_an_error_that_names_its_overlays(realm_hub: RealmFixture) -> None:
    ran = realm_hub.attempt("reader", "schema", "show", "kv.delete.v1")
    assert ran.status == 6
    assert "no schema 'kv.delete.v1' is registered" in ran.error
    assert "these overlays read it: kv" in ran.err


def test_a_registration_can_be_proved(realm_hub: RealmFixture, tmp_path: Path) -> None:
    realm_hub.run_as_admin("schema", "register", NAME, "--version", "v1")
    file = tmp_path / "schema.evidence"
    shown = realm_hub.run_offline("schema", "show", NAME, "--prove", "--out", file, "--json").json()
    stream = admin.schema_meta_stream(naming.realm_id(REALM))
    found = verify_state(file.read_bytes(), SCHEMAS, stream, naming.schema_id(NAME))
    assert found.state_hash.hex() == shown["state_hash"]


def test_the_schemas_of_a_stream_are_compared_with_the_registry(realm_hub: RealmFixture) -> None:
    for schema in (NAME, "door.other.v1", NAME):
        leave = ("--cap", realm_hub.root / "writer.cap")
        assert (
            realm_hub.attempt("writer", "send", "--stream", STREAM, "--body", "x", "--schema", schema, *leave).status
            == 0
        )
    realm_hub.run_as_admin("schema", "register", NAME, "--version", "v1")
    expected = [
        (naming.schema_id(NAME).hex(), NAME, True, 2, 1, 3),
        (naming.schema_id("door.other.v1").hex(), None, False, 1, 2, 2),
    ]
    for ran in (
        realm_hub.run("reader", "schema", "check", STREAM, "--json"),
        realm_hub.run_offline("schema", "check", STREAM, "--json", "--no-cache"),
    ):
        assert [
            (one["schema_id"], one["name"], one["registered"], one["count"], one["first"]["stream_seq"],
             one["last"]["stream_seq"])
            for one in ran.json()["schemas"]
        ] == expected  # fmt: skip
    early = realm_hub.run_offline("schema", "check", STREAM, "--at", 1, "--json").json()["schemas"]
    assert [one["count"] for one in early] == [1]
    assert "not registered" in realm_hub.run("reader", "schema", "check", STREAM).out


def test_schema_check_needs_the_reader_key(realm_hub: RealmFixture) -> None:
    ran = realm_hub.attempt("writer", "schema", "check", STREAM)
    assert ran.status == 6
    assert "no reader key" in ran.error


@pytest.mark.parametrize(
    "arguments",
    [("register", NAME), ("register", "", "--version", "v1"), ("register", NAME, "--version", "v1", "--id", "5b")],
)
def test_a_registration_has_a_name_a_version_and_a_whole_id(
    realm_hub: RealmFixture, arguments: tuple[str, ...]
) -> None:
    ran = realm_hub.attempt("admin", "schema", *arguments)
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
def test_faults_on_a_stream_of_the_realm_are_listed_and_skipped(
    realm_hub: RealmFixture, command: str, stream: Callable[[bytes], bytes], schema: bytes
) -> None:
    assert (
        f"no faults: veen {command} applied every entry that it reads" in realm_hub.run("reader", command, "faults").err
    )
    stream_id = stream(naming.realm_id(REALM))
    with ClientDir.open(realm_hub.root / "admin") as folder:
        folder.stream_keys.import_secret(stream_id.hex(), admin.reader_key(stream_id))
        folder.caps.add_all((realm_hub.root / "admin.cap").read_bytes())
        with BlockingClient(
            f"http://127.0.0.1:{realm_hub.hub.port}", folder, pin=Pin.parse(realm_hub.hub_id)
        ) as client:
            client.send(stream_id, b"no map", schema=schema)
    (fault,) = realm_hub.run("reader", command, "faults", "--json").json()["faults"]
    assert (fault["stream_seq"], fault["kind"]) == (1, "malformed")
    assert realm_hub.run_offline(command, "faults").out.startswith("1\tmalformed\t")
    assert realm_hub.run_offline(command, "faults", "--at", 0).out == ""
    assert realm_hub.run_offline(command, "list").status == 0
