"""`--read-access signed|mtls`: everything that reads from a hub works for known readers, and nothing for others."""

import datetime
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.cli.runner import Veen
from tests.cli.test_hub_lifecycle import background
from tests.cli.test_hub_reload import reload
from tests.http.certificates import client_context, write_certificate
from veen.client.client_dir import ClientDir
from veen.core import Refused, naming
from veen.core.limits import MAX_READ_PROOF_SEC
from veen.core.read_proof import sign_read
from veen.hub.read_access import READS, SUBSCRIBE
from veen.pipeline.sources import open_source
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders

TOKEN = {"VEEN_OPERATOR_TOKEN": "the operator's token"}


@pytest.fixture
def world(veen: Veen, tmp_path: Path) -> Path:
    """A data directory, a listed reader, a holder of a capability, and a stranger. All have the reader key."""
    veen.done("hub", "init", "--data-dir", tmp_path / "hub", "--no-root")
    for name in ("issuer", "reader", "holder", "stranger"):
        veen.done("keygen", "--out", tmp_path / name, "--no-passphrase")
    veen.done("stream-key", "create", "doors", "--client", tmp_path / "reader")
    exported = tmp_path / "doors.key"
    veen.done("stream-key", "export", "doors", "--client", tmp_path / "reader", "--out", exported)
    for name in ("holder", "stranger"):
        veen.done("stream-key", "import", exported, "--client", tmp_path / name)
    return tmp_path


def test_signed_reads_work_for_readers_and_holders_of_capabilities_and_for_nobody_else(
    veen: Veen, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = world / "hub"
    asked = ("--read-access", "signed", "--reader", world / "reader", "--issuer", world / "issuer")
    with background(veen, hub, *asked) as shown:
        url = str(shown["url"])
        cap = world / "holder.cap"
        veen.done(
            *("cap", "issue", "--issuer", world / "issuer", "--subject", world / "holder", "--stream", "doors"),
            *("--ttl", "1h", "--hub", hub, "--out", cap),
        )
        to = ("--hub", url, "--stream", "doors", "--pin", hub)
        for number in range(3):
            veen.done("send", *to, "--client", world / "holder", "--cap", cap, "--body", f"entry {number}")
        for name in ("reader", "holder"):
            found = veen.done("stream", *to, "--client", world / name).out
            assert found.count("entry") == 3, name
            veen.done("stream", *to, "--client", world / name, "--with-proof")
            veen.done("verify", *to, "--client", world / name)
        refused = veen("stream", *to, "--client", world / "stranger")
        assert refused.status != 0
        assert "is not a reader of this hub" in refused.error
        follow = [sys.executable, "-m", "veen.cli", "stream", *map(str, to), "--client", str(world / "reader")]
        with subprocess.Popen([*follow, "--follow"], stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            for _ in range(3):
                assert "entry" in follower.stdout.readline()
            veen.done("send", *to, "--client", world / "holder", "--body", "entry 3")
            assert "entry 3" in follower.stdout.readline()
            follower.terminate()
        operator = ("hub", "checkpoint", "--hub", url, "--stream", "doors")
        assert "answers only signed requests" in veen(*operator).error
        assert "VEEN_READER" in veen(*operator).err
        assert veen(*operator, env={"VEEN_READER": str(world / "reader")}).status == 0
        assert "is not a reader" in veen(*operator, env={"VEEN_READER": str(world / "stranger")}).error
        label = naming.label(
            naming.routing_key(read_metadata(Folders(hub)).identity.hub_id), naming.stream_id("doors"), 0
        )
        with pytest.raises(Refused, match="answers only signed requests"):
            open_source(url).chunks(frozenset({label}))
        monkeypatch.setenv("VEEN_READER", str(world / "reader"))
        assert sum(one.end_seq - one.start_seq + 1 for one in open_source(url).chunks(frozenset({label}))) == 4
        for path in ("/healthz", "/readyz", "/metrics", "/tooling/status", "/tooling/openapi.json"):
            assert httpx.get(url + path).status_code == 200, path


def test_bridges_witnesses_and_tables_read_a_hub_that_answers_only_readers(
    veen: Veen, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, other, witness = world / "hub", world / "other", world / "witness"
    veen.done("hub", "init", "--data-dir", other, "--no-root")
    key = veen.done("witness", "init", "--dir", witness, "--no-passphrase", "--json").json()["witness_pk"]
    veen.done("stream-key", "create", "bridge/online/log", "--client", world / "reader")
    signed = ("--read-access", "signed", "--reader", world / "reader", "--admission", "open", "--witness", key)
    with (
        background(veen, hub, *signed) as source,
        background(veen, other, "--admission", "open") as target,
    ):
        url = str(source["url"])
        for number in range(3):
            body = f"entry {number}"
            veen.done(
                "send", "--hub", url, "--stream", "doors", "--pin", hub, "--client", world / "reader", "--body", body
            )
        there = ("--source-hub", url, "--source-pin", hub, "--hub", str(target["url"]), "--pin", other)
        mirrored = veen.done("bridge", "mirror", "doors", *there, "--client", world / "reader", "--json").json()
        assert [one["stream_seq"] for one in mirrored] == [1, 2, 3]
        assert veen("bridge", "compare", "doors", *there, "--client", world / "reader").status == 0
        export = ("bridge", "export", "doors", "--hub", url, "--pin", hub, "--json")
        for name in ("one", "two"):
            (world / name).mkdir()
        (bundle,) = veen.done(*export, "--client", world / "reader", "--out", world / "one").json()
        assert (bundle["export_seq_from"], bundle["export_seq_to"]) == (1, 3)
        for command in (
            ("bridge", "mirror", "doors", *there, "--client", world / "stranger"),
            (*export, "--client", world / "stranger", "--from", 1, "--to", 3, "--out", world / "two"),
        ):
            refused = veen(*command)
            assert refused.status != 0
            assert "is not a reader of this hub" in refused.err
            assert "--reader" in refused.err
        cosign = ("witness", "cosign", "--hub", url, "--pin", hub, "--stream", "doors", "--json")
        cosigned = veen.done(*cosign, "--dir", witness).json()
        assert (cosigned["upto_seq"], cosigned["hub"]) == (3, "stored the cosignature")
        veen.done("witness", "init", "--dir", world / "unknown", "--no-passphrase")
        refused = veen(*cosign, "--dir", world / "unknown")
        assert refused.status != 0
        assert "is not a reader of this hub" in refused.error
        label = naming.label(
            naming.routing_key(read_metadata(Folders(hub)).identity.hub_id), naming.stream_id("doors"), 0
        )
        monkeypatch.setenv("VEEN_READER", str(world / "reader"))
        log = open_source(url)
        (chunk,) = log.chunks(frozenset({label}))
        assert sum(len(data) for data, _ in log.blocks(chunk)) > 0
        assert len(log.peaks(label, 3)) == 2
        monkeypatch.setenv("VEEN_READER", str(world / "stranger"))
        with pytest.raises(Refused, match="is not a reader of this hub"):
            open_source(url).chunks(frozenset({label}))


def paths() -> list[tuple[str, str]]:
    return sorted([*READS, ("GET", f"/tooling/attachments/{'0' * 64}")])


def test_every_read_needs_a_proof_that_is_for_it_and_still_valid(veen: Veen, world: Path) -> None:
    hub = world / "hub"
    asked = ("--read-access", "signed", "--reader", world / "reader", "--admission", "open")
    with background(veen, hub, *asked) as shown, ClientDir.open(world / "reader") as folder, httpx.Client() as http:
        url = str(shown["url"])
        status = http.get(f"{url}/tooling/status").json()
        assert status["read_access"] == "signed"
        hub_id, key = bytes.fromhex(status["hub_id"]), folder.identity.id_sign

        def ask(method: str, target: str, body: bytes, header: str | None) -> tuple[int, str]:
            headers = {"content-type": "application/json", "accept": "application/json"}
            given = headers | ({"authorization": header} if header is not None else {})
            answer = http.request(method, url + target, content=body, headers=given)
            return answer.status_code, answer.text

        def header(method: str, target: str, body: bytes, **changed: object) -> str:
            now = int(http.get(f"{url}/tooling/status").json()["hub_ts"])
            fields = {"hub_id": hub_id, "method": method, "target": target, "body": body, "not_after": now + 60}
            return sign_read(key, **(fields | changed)).header()  # type: ignore[arg-type]

        for method, path in paths():
            body = b"{}" if method == "POST" else b""
            good = header(method, path, body)
            now = int(status["hub_ts"])
            bad = {
                "none": None,
                "empty": "",
                "a bearer": "Bearer guess",
                "no proof": "veen-read 00",
                "another scheme": good.replace("veen-read", "veen-write"),
                "another hub": header(method, path, body, hub_id=bytes(32)),
                "another method": header("PUT", path, body),
                "another target": header(method, f"{path}?label=1", body),
                "another body": header(method, path, b"other"),
                "too late": header(method, path, body, not_after=now - 1),
                "too long": header(method, path, body, not_after=now + 10 * MAX_READ_PROOF_SEC),
                "no such capability": header(method, path, body, auth_ref=bytes(32)),
                "a flipped bit": good[:-1] + ("0" if good[-1] != "0" else "1"),
            }
            for why, wrong in bad.items():
                code, text = ask(method, path, body, wrong)
                assert code in (401, 403), (path, why, code, text)
            code, text = ask(method, path, body, good)
            assert code not in (401, 403), (path, text)
            # An answer can be repeated while the proof is valid; a subscription can be opened once.
            assert ask(method, path, body, good)[0] == (401 if path == SUBSCRIBE else code)


def test_the_operator_token_reads_and_a_signal_changes_the_readers(
    veen: Veen, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TOKEN.items():
        monkeypatch.setitem(veen.env, name, value)
    settings, hub, log = world / "hub.toml", world / "hub", world / "hub.log"
    settings.write_text('read_access = "signed"\nadmission = "open"\n')
    started = veen.apart(
        *("hub", "start", "--data-dir", hub, "--listen", "127.0.0.1:0", "--workers", "0", "--config", settings),
        *("--log-file", log, "--json"),
    ).json()
    try:
        to = ("--hub", started["url"], "--stream", "doors", "--pin", hub)
        assert veen("stream", *to, "--client", world / "reader").status != 0
        answer = httpx.get(
            f"{started['url']}/tooling/retention", headers={"authorization": f"Bearer {TOKEN['VEEN_OPERATOR_TOKEN']}"}
        )
        assert answer.status_code == 200
        settings.write_text(f'read_access = "signed"\nadmission = "open"\nreaders = ["{world / "reader"}"]\n')
        reload(started, log, "reloaded")
        assert veen("stream", *to, "--client", world / "reader").status == 0
    finally:
        veen("hub", "stop", "--data-dir", hub)


def client_certificate(folder: Path) -> tuple[Path, Path, Path]:
    """An authority, and a client's certificate and key that it signed."""
    now = datetime.datetime.now(datetime.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", "client")]
    made = []
    for number, (key, name) in enumerate(zip(keys, names, strict=True)):
        made.append(
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=number == 0, path_length=None), critical=True)
            .sign(keys[0], hashes.SHA256())
        )
    paths = folder / "ca.pem", folder / "client.pem", folder / "client.key"
    for path, data in zip(
        paths,
        (
            *(one.public_bytes(serialization.Encoding.PEM) for one in made),
            keys[1].private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        ),
        strict=True,
    ):
        path.write_bytes(data)
    return paths


def test_a_context_brings_pin_and_certificates(veen: Veen, world: Path) -> None:
    hub = world / "hub"
    cert, key = write_certificate(world)
    authority, client_cert, client_key = client_certificate(world)
    tls = ("--tls-cert", cert, "--tls-key", key, "--client-ca", authority)
    with background(veen, hub, "--read-access", "mtls", "--admission", "open", *tls) as shown:
        url = str(shown["url"]).replace("127.0.0.1", "localhost")
        unknown = veen("hub", "status", "--hub", url)
        assert unknown.error == f"TLS certificate of {url}: not trusted: self-signed certificate"
        assert "--pin cert.pem" in unknown.err
        assert "VEEN_TLS_CA" in unknown.err
        named = ("--ca", cert, "--tls-cert", client_cert, "--tls-key", client_key, "--pin", hub)
        veen.done("context", "add", "site", "--hub", url, "--client", world / "reader", "--stream", "doors", *named)
        veen.done("send", "--body", "entry 1")
        assert "entry 1" in veen.done("stream").out
        assert "ready" in veen.done("hub", "status").out
        other = veen("hub", "status", "--hub", shown["url"])  # the certificates are for the hub of the context
        assert other.error == f"TLS certificate of {shown['url']}: not trusted: self-signed certificate"


def test_a_context_rejects_a_pin_that_it_cannot_use(veen: Veen, tmp_path: Path) -> None:
    cert, _ = write_certificate(tmp_path)
    alone = veen("context", "add", "site", "--pin", "ab" * 32)
    assert (alone.status, alone.error) == (2, "--pin needs the hub that it is for")
    bare = veen("context", "add", "site", "--pin", cert, "--hub", "http://127.0.0.1:1")
    assert bare.status == 2
    assert "is a certificate" in bare.error
    assert veen("context", "add", "site", "--pin", "no-such-file", "--hub", "https://127.0.0.1:1").status == 2
    assert veen.done("context", "list", "--json").json() == []


def test_client_certificates_open_the_reads(veen: Veen, world: Path) -> None:
    hub = world / "hub"
    cert, key = write_certificate(world)
    authority, client_cert, client_key = client_certificate(world)
    tls = ("--tls-cert", cert, "--tls-key", key, "--client-ca", authority)
    trusted = {"SSL_CERT_FILE": str(cert)}
    shown_cert = trusted | {"VEEN_TLS_CERT": str(client_cert), "VEEN_TLS_KEY": str(client_key)}
    with background(veen, hub, "--read-access", "mtls", "--admission", "open", *tls) as shown:
        url = str(shown["url"]).replace("127.0.0.1", "localhost")
        to = ("--hub", url, "--stream", "doors", "--pin", hub, "--client", world / "reader")
        veen.done("send", *to, "--body", "entry 1", env=shown_cert)
        assert "entry 1" in veen.done("stream", *to, env=shown_cert).out
        refused = veen("stream", *to, env=trusted)
        assert refused.status != 0
        assert "only clients with a certificate" in refused.error
        assert "VEEN_TLS_CERT" in refused.err
        command = [sys.executable, "-m", "veen.cli", "stream", *map(str, to), "--follow"]
        environment = {**os.environ, **shown_cert}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as follower:
            assert follower.stdout is not None
            assert "entry 1" in follower.stdout.readline()
            veen.done("send", *to, "--body", "entry 2", env=shown_cert)
            assert "entry 2" in follower.stdout.readline()
            follower.terminate()
        assert httpx.get(f"{url}/metrics", verify=client_context(cert)).status_code == 200


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--read-access", "mtls"), "needs the authority of the clients"),
        (("--client-ca", "ca.pem"), "client certificates need TLS"),
    ],
)
def test_contradictory_settings_are_refused(veen: Veen, world: Path, options: tuple[str, ...], what: str) -> None:
    refused = veen("hub", "start", "--data-dir", world / "hub", "--foreground", *options)
    assert refused.status == 2
    assert what in refused.error
