"""Settings of a hub: options override the profile, the profile the file, the file the defaults."""

import dataclasses
from ipaddress import ip_network
from pathlib import Path

import pytest

from plumbing.cli.command import Misuse
from plumbing.http import HttpSettings
from tests.cli.runner import Veen
from tests.http.certificates import write_certificate
from veen.cli.hub import hub_settings
from veen.cli.kit.values import Address
from veen.core import Malformed, Unavailable
from veen.hub.admission_rules import Admission
from veen.hub.config import HTTP, HubConfig

KEY = "ab" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hub.toml"


def config(file: Path | None, text: str | None = None, profile: str | None = None, **options: object) -> HubConfig:
    if file is not None and text is not None:
        file.write_text(text)
    return hub_settings.config(Path("data"), options, file, profile)


def test_without_options_and_file_the_defaults_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(hub_settings.OPERATOR_TOKEN, raising=False)
    assert config(None) == HubConfig(Path("data"))


def test_the_example_file_is_valid(file: Path) -> None:
    made = config(file, hub_settings.EXAMPLE)
    assert len(made.issuers) == 1
    assert made.http == HttpSettings(max_connections=1024, makes_room=True)
    assert config(file, profile="lab").admission is Admission.OPEN


def test_every_field_of_the_configuration_is_a_setting() -> None:
    fields = {field.name for field in dataclasses.fields(HubConfig)}
    elsewhere = {"data_dir", "host", "port", "operator_token", "http", "witness_addresses"}
    assert set(hub_settings.READERS) == fields - elsewhere | {"listen"}


def test_the_example_shows_every_setting() -> None:
    assert [name for name in hub_settings.READERS if f"{name} = " not in hub_settings.EXAMPLE] == []


def test_every_limit_of_the_http_server_can_be_set(file: Path) -> None:
    defaults = HTTP
    numbers = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(HttpSettings)}
    networks, makes_room = numbers.pop("uncounted_networks"), numbers.pop("makes_room")
    lines = [f"{name} = {value + 1}" for name, value in numbers.items()]
    lines.append(f"makes_room = {str(not makes_room).lower()}")
    made = config(
        file, "\n".join(["[http]", *lines, f"uncounted_networks = {[str(one) for one in networks[:1]]}"])
    ).http
    assert {name: getattr(made, name) for name in numbers} == {name: value + 1 for name, value in numbers.items()}
    assert (made.uncounted_networks, made.makes_room) == (networks[:1], not makes_room)
    with pytest.raises(Malformed, match="makes_room: must be true or false"):
        config(file, "[http]\nmakes_room = 1\n")


def test_options_override_the_profile_and_the_profile_the_file(file: Path) -> None:
    text = 'listen = "127.0.0.1:1"\nworkers = 1\nmax_in_flight = 1\n[profile.p]\nworkers = 2\nlisten = "127.0.0.1:2"\n'
    made = config(file, text, "p", listen=Address("127.0.0.1", 3))
    assert (made.host, made.port, made.workers, made.max_in_flight) == ("127.0.0.1", 3, 2, 1)


def test_settings_that_a_profile_lacks_come_from_the_file(file: Path) -> None:
    text = "[http]\nbacklog = 7\nmax_headers = 5\n[profile.p.http]\nmax_headers = 6\n"
    assert config(file, text, "p").http == HttpSettings(backlog=7, max_headers=6, makes_room=True)
    assert config(file, text).http == HttpSettings(backlog=7, max_headers=5, makes_room=True)


def test_networks_and_work_come_from_the_file_or_the_options(file: Path) -> None:
    text = 'pow_difficulty = 40\nallow_networks = ["10.0.0.0/8", "fd00::/8"]\ndeny_networks = ["10.1.2.3"]\n'
    made = config(file, text)
    assert made.pow_difficulty == 40
    assert made.allow_networks == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert made.deny_networks == (ip_network("10.1.2.3/32"),)
    overridden = config(file, text, pow_difficulty=1, allow_networks=[ip_network("127.0.0.0/8")])
    assert (overridden.pow_difficulty, overridden.allow_networks) == (1, (ip_network("127.0.0.0/8"),))
    assert overridden.deny_networks == made.deny_networks
    with pytest.raises(Misuse, match="41 is above 40"):
        config(file, text, pow_difficulty=41)


def test_an_option_replaces_the_keys_of_the_file(file: Path) -> None:
    made = config(file, f'issuers = ["{KEY}"]\nwitnesses = ["{KEY}"]\n', issuers=[b"k"])
    assert made.issuers == {b"k"}
    assert made.witnesses == {bytes.fromhex(KEY)}


def test_an_issuer_may_be_a_client_directory_beside_the_file(veen: Veen, file: Path) -> None:
    made = veen.done("keygen", "--out", file.parent / "operator", "--no-passphrase", "--json").json()
    for named in ("operator", "operator/card.cbor"):
        assert config(file, f'issuers = ["{named}"]\n').issuers == {bytes.fromhex(made["id_sign"])}


def test_an_issuer_file_that_is_not_a_card_is_rejected(file: Path) -> None:
    (file.parent / "notes").write_text("not a card")
    with pytest.raises(Malformed, match="not an identity card"):
        config(file, 'issuers = ["notes"]\n')


def test_capability_admission_without_an_issuer_gives_a_warning() -> None:
    assert "no --issuer given" in (hub_settings.warning(config(None)) or "")
    assert hub_settings.warning(config(None, issuers=[b"k"])) is None
    assert hub_settings.warning(config(None, admission="open")) is None


def test_paths_are_relative_to_the_file(file: Path) -> None:
    cert, key = write_certificate(file.parent)
    made = config(file, f'tls_cert = "{cert.name}"\ntls_key = "{key.name}"\n')
    assert (made.tls_cert, made.tls_key) == (cert, key)


def test_the_token_comes_from_the_environment_only(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hub_settings.OPERATOR_TOKEN, "secret")
    assert config(None).operator_token == "secret"
    with pytest.raises(Malformed, match="there is no setting 'operator_token'"):
        config(file, 'operator_token = "x"\n')


FAULTS = [
    ("colour = 1", "there is no setting 'colour'"),
    ("listen = 5", "listen: must be text"),
    ('listen = "x"', "listen: 'x' is not HOST:PORT"),
    ('admission = "some"', "admission: 'some' is not one of"),
    ('issuers = "x"', "issuers: must be a list of public keys"),
    ('issuers = ["x"]', "issuers: 'x' is neither a public key of 64 hex digits, nor a client directory or card"),
    ("witnesses = [1]", "witnesses: must be text"),
    ("workers = -1", "workers: must be a whole number"),
    ("workers = true", "workers: must be a whole number"),
    ("workers = 1.5", "workers: must be a whole number"),
    ('log_submits = "yes"', "log_submits: must be true or false"),
    ("tls_cert = 1", "tls_cert: must be text"),
    ("http = 1", "http must be a table"),
    ("[http]\ncolour = 1", "there is no setting 'colour' under"),
    ("[http]\nbacklog = 0", "http.backlog: must be a number above zero"),
    ("[http]\nbacklog = 1.5", "http.backlog: must be a number above zero"),
    ("[http]\nbacklog = true", "http.backlog: must be a number above zero"),
    ('[http]\nidle_timeout_s = "x"', "http.idle_timeout_s: must be a number above zero"),
    ("[http]\nuncounted_networks = 1", "http.uncounted_networks: must be a list of networks"),
    ('[http]\nuncounted_networks = ["x"]', "'x' does not appear to be"),
    ("[http]\nuncounted_networks = [1]", "must be text"),
    ("role = 1", "role: must be text"),
    ("pow_difficulty = -1", "pow_difficulty: must be a whole number"),
    ("pow_difficulty = 41", "pow_difficulty: a proof of work has at most 40 bits"),
    ("allow_networks = 1", "allow_networks: must be a list of networks"),
    ('allow_networks = ["x"]', "allow_networks: 'x' is not a network"),
    ("deny_networks = [1]", "deny_networks: must be text"),
    ('deny_networks = ["10.0.0.1/8"]', "deny_networks: '10.0.0.1/8' is not a network"),
    ("profile = 1", "profile must consist of tables"),
    ("[profile]\nx = 1", "profile must consist of tables"),
    ("nonsense", "xpected"),
]


@pytest.mark.parametrize(("text", "fault"), FAULTS, ids=lambda case: str(case).replace("\n", " "))
def test_an_error_in_the_file_names_file_setting_and_reason(text: str, fault: str, file: Path) -> None:
    with pytest.raises(Malformed) as caught:
        config(file, text)
    assert caught.value.what == str(file)
    assert fault in caught.value.reason
    assert caught.value.__notes__


def test_a_number_of_seconds_may_have_a_fraction(file: Path) -> None:
    assert config(file, "[http]\nidle_timeout_s = 1.5\nlinger_s = 2\n").http.idle_timeout_s == 1.5


def test_an_unknown_profile_is_rejected(file: Path) -> None:
    with pytest.raises(Malformed, match="there is no profile 'q'; the file has p"):
        config(file, "[profile.p]\n", "q")


def test_a_profile_needs_a_file() -> None:
    with pytest.raises(Misuse, match="--profile needs a configuration file"):
        config(None, profile="p")


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot read .*hub\.toml"):
        config(file)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "hub.example"])
def test_open_admission_outside_this_machine_needs_confirmation(host: str, file: Path) -> None:
    listen = Address(host, 1)
    with pytest.raises(Misuse, match="lets anyone who can reach it write"):
        config(None, listen=listen, admission="open")
    with pytest.raises(Misuse, match="lets anyone who can reach it write"):
        config(file, 'admission = "open"\n', listen=listen)
    assert config(None, listen=listen, admission="open", open_to_the_network=True).admission is Admission.OPEN
    assert config(None, listen=listen).admission is Admission.CAPABILITY


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    with pytest.raises(Misuse, match="a certificate and its key"):
        config(None, tls_cert=cert)
    with pytest.raises(Misuse, match="a certificate and its key"):
        config(None, tls_key=key)
    with pytest.raises(Malformed, match="not a certificate for the key"):
        config(None, tls_cert=cert, tls_key=cert)
    with pytest.raises(Unavailable, match="cannot read"):
        config(None, tls_cert=tmp_path / "none", tls_key=key)
    assert config(None, tls_cert=cert, tls_key=key).tls_cert == cert
