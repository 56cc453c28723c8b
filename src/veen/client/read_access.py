"""Sign the reads from a hub that answers only known readers, and the TLS contexts of a client. 001, COMP0.3."""

import os
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from veen.client.client_dir import ClientDir
from veen.core import Refused, Unavailable
from veen.core.limits import MAX_READ_PROOF_SEC
from veen.core.read_proof import sign_read
from veen.core.signing import DigestSigner, SigningKey

CA, CERT, KEY, READER = "VEEN_TLS_CA", "VEEN_TLS_CERT", "VEEN_TLS_KEY", "VEEN_READER"
_MAX_GENERATIONS = 512  # client_ids that are tried for the subject of a capability
_MAX_TRIED = 3
Credential = tuple[DigestSigner, bytes | None]  # the key, and the capability whose subject it is


class ReadSigner:
    """Signs the reads from one hub. The first credential that the hub accepts is used from then on."""

    def __init__(
        self, hub_id: bytes, hub_ts: int, credentials: Iterable[Credential], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hub_id = hub_id
        self._credentials = list(credentials)
        self._clock = clock
        self._ahead = hub_ts - clock()
        self._set_clock = False

    def headers(self, method: str, target: str, body: bytes = b"") -> dict[str, str]:
        """The header for one request."""
        if not self._credentials:
            return {}
        key, auth_ref = self._credentials[0]
        not_after = int(self._clock() + self._ahead) + MAX_READ_PROOF_SEC // 2
        made = sign_read(
            key,
            hub_id=self._hub_id,
            method=method,
            target=target,
            body=body,
            not_after=not_after,
            auth_ref=auth_ref,
        )
        return {"authorization": made.header()}

    def again(self, refused: Refused) -> bool:
        """Whether to repeat a request that the hub refused: with its time, or with the next credential."""
        if refused.code not in ("E.UNAUTHORIZED", "E.FORBIDDEN") or not self._credentials:
            return False
        hub_ts = refused.detail.get("hub_ts")
        if isinstance(hub_ts, int) and abs(hub_ts - self._clock() - self._ahead) > 1 and not self._set_clock:
            self._ahead, self._set_clock = hub_ts - self._clock(), True
            return True
        if len(self._credentials) > 1:
            del self._credentials[0]
            return True
        return False


def signer_of(folder: ClientDir, hub_id: bytes, hub_ts: int) -> ReadSigner:
    """Sign as a client: with its own key, if the hub lists it, or as the subject of an authorized capability."""
    identity = folder.identity
    by_subject, ends = {}, {}
    for token in folder.caps:
        auth_ref = token.auth_ref()
        end = folder.caps.granted(hub_id, auth_ref)
        if end is not None and end > hub_ts:
            by_subject[token.subject_pk], ends[auth_ref] = auth_ref, end
    found: list[tuple[SigningKey, bytes]] = []
    for generation in range(folder.card.generation, folder.card.generation + _MAX_GENERATIONS):
        if not by_subject:
            break
        key = identity.client_key(generation)
        if key.public_key in by_subject:
            found.append((key, by_subject.pop(key.public_key)))
    found.sort(key=lambda one: -ends[one[1]])  # the one that ends last
    return ReadSigner(hub_id, hub_ts, [(identity.id_sign, None), *found[:_MAX_TRIED]])


def signer_from_environment(hub_id: bytes, hub_ts: int) -> ReadSigner | None:
    """Sign as the client whose directory VEEN_READER names; None if it names none."""
    path = os.environ.get(READER)
    if not path:
        return None
    with ClientDir.open(Path(path)) as folder:
        return signer_of(folder, hub_id, hub_ts)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a client: authorities to trust besides those of the system, and its own certificate with its key."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


# By the URL of the hub. For other hubs, VEEN_TLS_CA, VEEN_TLS_CERT and VEEN_TLS_KEY name the files.
tls_files: dict[str, TlsFiles] = {}


def _files(url: str) -> TlsFiles:
    read = os.environ.get
    return tls_files.get(url.rstrip("/")) or TlsFiles(read(CA), read(CERT), read(KEY))


def trusting(url: str) -> ssl.SSLContext:
    """A context that trusts the authorities of the system, or of SSL_CERT_FILE, and those for this hub."""
    context, files = ssl.create_default_context(), _files(url)
    try:
        if files.ca:
            context.load_verify_locations(files.ca)
    except OSError as error:
        raise Unavailable(f"the authorities in {files.ca} cannot be used: {error.strerror or error}") from None
    return context


def certified(url: str, make: Callable[[], ssl.SSLContext]) -> Callable[[], ssl.SSLContext]:
    """The contexts of `make`, with the client certificate for this hub."""
    files = _files(url)
    if not files.cert:
        return make

    def with_certificate() -> ssl.SSLContext:
        context = make()
        try:
            context.load_cert_chain(str(files.cert), files.key)
        except OSError as error:
            of = f"the certificate {files.cert}" + (f" and its key {files.key}" if files.key else "")
            raise Unavailable(f"{of} cannot be used: {error.strerror or error}") from None
        return context

    return with_certificate
