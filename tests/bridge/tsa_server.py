"""A time-stamping authority on loopback: `openssl ts` behind a plain HTTP server."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

_CONFIG = """
[tsa]
default_tsa = one
[one]
dir = {root}
serial = {root}/serial
crypto_device = builtin
signer_cert = {root}/tsa.pem
signer_key = {root}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha512
accuracy = secs:1
ordering = yes
tsa_name = no
ess_cert_id_chain = no
ess_cert_id_alg = sha256
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign
[stamp]
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, timeStamping
"""


def _openssl(root: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=root)


def certify(root: Path) -> None:
    """Create a root certificate and a time-stamping certificate under it."""
    (root / "tsa.cnf").write_text(_CONFIG.format(root=root))
    (root / "serial").write_text("01")
    common = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-config", "tsa.cnf")
    ca = ("-x509", "-days", "3650", "-extensions", "ca", "-subj", "/CN=root", "-keyout", "ca.key", "-out", "ca.pem")
    _openssl(root, "req", *common, *ca)
    _openssl(root, "req", *common, "-subj", "/CN=tsa", "-keyout", "tsa.key", "-out", "tsa.csr")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-set_serial", "2", "-days", "3650")
    extended = ("-extfile", "tsa.cnf", "-extensions", "stamp")
    _openssl(root, "x509", "-req", "-in", "tsa.csr", *signed, *extended, "-out", "tsa.pem")


@dataclass
class Authority:
    """The server's address and certificates. `answer` replaces the time stamp that openssl creates."""

    root: Path
    url: str = ""
    answer: tuple[int, str, bytes] | None = None

    def stamp(self, query: bytes) -> bytes:
        (self.root / "query.tsq").write_bytes(query)
        _openssl(self.root, "ts", "-reply", "-config", "tsa.cnf", "-queryfile", "query.tsq", "-out", "reply.tsr")
        return (self.root / "reply.tsr").read_bytes()

    @property
    def roots(self) -> Path:
        return self.root / "ca.pem"


@contextmanager
def authority(root: Path) -> Iterator[Authority]:
    certify(root)
    found = Authority(root)

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = self.rfile.read(int(self.headers["content-length"]))
            status, kind, data = found.answer or (200, "application/timestamp-reply", found.stamp(query))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    found.url = f"http://127.0.0.1:{server.server_port}/"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
