"""Trust in a hub's keys, starting from a pin. Spec §8.4.

A pin is the hub's id, the fingerprint of one of its keys, a copy of its identity record, or its TLS certificate. Later
keys are accepted only if the chain of endorsements leads to them. A policy file names the witnesses to trust.
"""

import asyncio
import ssl
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from veen.client import local_files
from veen.client.contradiction import Contradiction, Lie, shown_time
from veen.core import (
    HubIdentity,
    IdentitySignature,
    Limits,
    Malformed,
    Profile,
    Receipt,
    Unavailable,
    Unverified,
    signing,
    wire_json,
)
from veen.core.cbor import ListOf, Nested, VersionField, Wire, int_map
from veen.core.cosignature import WitnessPolicy
from veen.core.hashing import HASH_BYTES
from veen.core.hub_identity import ForkOrigin, lineage
from veen.core.limits import MAX_LIMIT_CHANGES, MAX_RECOVERIES, MAX_WITNESS_SIGS
from veen.core.profile import EarlierLimits
from veen.core.proof import Head
from veen.core.signing import PUBLIC_KEY_BYTES
from veen.core.strict_json import Json
from veen.core.wire_json import Fields


@dataclass(frozen=True, slots=True)
class HubStatus:
    """The response to GET /tooling/status."""

    identity: HubIdentity
    signature: IdentitySignature
    profile: Profile
    limits: Limits
    earlier_limits: tuple[EarlierLimits, ...]
    hub_pk: bytes  # the key that the hub claims is active
    hub_ts: int
    epoch: int
    admission: str
    bare_tokens: bool | None  # whether it accepts capabilities without presentation; None for an older hub
    server_version: str
    labels: int
    entries: int
    shown: dict[str, Json]  # the whole response, for display

    @classmethod
    def read(cls, found: Json) -> "HubStatus":
        fields = Fields.of("hub status", found)
        status = cls(
            identity=fields.wire("identity", HubIdentity),
            signature=fields.wire("identity_sig", IdentitySignature),
            profile=fields.wire("profile", Profile),
            limits=fields.wire("limits", Limits),
            earlier_limits=_earlier_limits(fields.found.get("earlier_limits")),
            hub_pk=fields.hash("hub_pk"),
            hub_ts=fields.number("hub_ts"),
            epoch=fields.number("epoch"),
            admission=fields.text("admission"),
            bare_tokens=None if (bare := fields.found.get("bare_tokens")) is None else bare is True,
            server_version=fields.text("server_version"),
            labels=fields.number("labels"),
            entries=fields.number("entries"),
            shown=fields.found,
        )
        if fields.hash("profile_id") != status.profile.profile_id():
            raise Malformed("hub status", "profile_id does not match its profile")
        if fields.hash("hub_id") != status.identity.hub_id:
            raise Malformed("hub status", "hub_id does not match its identity")
        return status


def _earlier_limits(found: Json) -> tuple[EarlierLimits, ...]:
    """A hub of an earlier version has none."""
    if found is None:
        return ()
    if not isinstance(found, list) or len(found) > MAX_LIMIT_CHANGES:
        raise Malformed("hub status", "earlier_limits is not a list of limits")
    return tuple(Fields("hub status", {"row": row}).wire("row", EarlierLimits) for row in found)


_DEFAULT_PORT = 443


def fingerprint_of(pem: bytes) -> bytes:
    """SHA-256 of the first certificate of a PEM file."""
    try:
        return sha256(ssl.PEM_cert_to_DER_cert(_first(pem.decode("ascii")))).digest()
    except (ValueError, UnicodeDecodeError):
        raise Malformed("certificate", "not in PEM form") from None


def _first(text: str) -> str:
    end = "-----END CERTIFICATE-----"
    return text[: text.index(end) + len(end)]


class UntrustedCertificate(Unverified):
    """The TLS certificate of a hub does not verify, so nothing was sent to it."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"TLS certificate of {url}", reason)
        self.untrusted_url = url


async def pinned(url: str, fingerprint: bytes, timeout_s: float) -> Callable[[], ssl.SSLContext]:
    """A factory for contexts that accept only the pinned certificate.

    It first fetches the certificate and compares its fingerprint, then makes it the only trusted one. So every later
    connection is authenticated before any data is sent.
    """
    where = urlsplit(url)
    if where.scheme != "https" or not where.hostname:
        raise Unverified("hub", f"a certificate is pinned, but {url} is not an https address")
    der = await _shown(where.hostname, where.port or _DEFAULT_PORT, timeout_s)
    found = sha256(der).digest()
    if found != fingerprint:
        raise UntrustedCertificate(url, f"it is {found.hex()[:16]}…, not the pinned {fingerprint.hex()[:16]}…")
    return lambda: _only(der)


def _only(der: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # the pin is stronger than a name
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate need not be self-signed
    context.load_verify_locations(cadata=der)
    return context


async def _shown(host: str, port: int, timeout_s: float) -> bytes:
    """The certificate that a server presents, not verified yet."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=unverified, server_hostname=host)
    except TimeoutError:
        raise Unavailable(
            f"{host}:{port} did not finish the connection and TLS handshake within {timeout_s:g} s"
        ) from None
    except OSError as error:
        raise Unavailable(f"{host}:{port} did not answer: {str(error) or type(error).__name__}") from None
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(der, bytes)
        return der
    finally:
        writer.transport.abort()


IDENTITY_FILE = "hub-identity.json"
SIGNATURE_FILE = "hub-identity.sig"
CERTIFICATE_PREFIX = "cert:"


@dataclass(frozen=True, slots=True)
class Pin:
    """The user's knowledge about a hub. Exactly one field is set; `on_first_use` trusts the first hub that answers."""

    key: bytes | None = None  # hub_id, or H(hub_pk) of any of its keys
    record: HubIdentity | None = None
    certificate: bytes | None = None  # SHA-256 of the TLS certificate
    on_first_use: bool = False

    def __post_init__(self) -> None:
        given = (self.key is not None, self.record is not None, self.certificate is not None, self.on_first_use)
        if sum(given) != 1:
            raise ValueError("a pin needs exactly one of key, record, certificate and on_first_use")

    @classmethod
    def parse(cls, text: str) -> "Pin":
        """Parse 64 hex digits, `cert:` and 64 hex digits, or a path to a data directory, identity or PEM file."""
        prefix, found = text.startswith(CERTIFICATE_PREFIX), text.removeprefix(CERTIFICATE_PREFIX)
        try:
            digest = bytes.fromhex(found)
        except ValueError:
            digest = b""
        if len(digest) == HASH_BYTES:
            return cls(certificate=digest) if prefix else cls(key=digest)
        path = Path(text)
        if prefix or not path.exists():
            raise Malformed("pin", f"{text!r} is neither 64 hex digits nor an existing file or directory")
        return cls.of_file(path)

    @classmethod
    def of_file(cls, path: Path) -> "Pin":
        """Read a data directory, an identity record with its signature beside it, or a certificate in PEM form."""
        path = path / IDENTITY_FILE if path.is_dir() else path
        try:
            content = path.read_bytes()
            if content.startswith(b"-----BEGIN"):
                return cls(certificate=fingerprint_of(content))
            signature = path.with_name(SIGNATURE_FILE).read_bytes()
        except OSError as error:
            raise Unavailable(f"{error.filename or path} cannot be read: {error.strerror}") from None
        record = wire_json.decode_canonical(HubIdentity, content)
        record.verify(wire_json.decode_canonical(IdentitySignature, signature), record.hub_id)
        return cls(record=record)


FIRST_USE = Pin(on_first_use=True)


@int_map("key history")
class KeyHistory(Wire):
    """An identity record of a hub besides the current one, with its signature."""

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]


@int_map("hub record", VersionField())
class HubRecord(Wire):
    """The stored record of a hub."""

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]
    profile: Annotated[Profile, Nested(Profile)]
    limits: Annotated[Limits, Nested(Limits)]
    origin: Annotated[ForkOrigin | None, Nested(ForkOrigin, optional=True)] = None  # only if the hub is a fork
    earlier: Annotated[
        tuple[KeyHistory, ...] | None,
        ListOf(Nested(KeyHistory, name="key history"), most=MAX_RECOVERIES, optional=True),
    ] = None  # earlier incarnations of the hub, newest first: this client may hold receipts of them


class HubTrust:
    """The trusted keys of one hub, and every check that needs them."""

    def __init__(self, known: HubRecord) -> None:
        self._set(known)

    def _set(self, known: HubRecord) -> None:
        self.known = known
        self.hub_id = known.identity.hub_id
        self.profile = known.profile
        self.limits = known.limits
        # The prefix that a fork kept was signed by its origin. The fork's own signature fixes the end of that prefix.
        self.lineage = lineage(known.identity, known.origin)

    @classmethod
    def begin(
        cls, status: HubStatus, pin: Pin | None, kept: HubRecord | None, origin: ForkOrigin | None = None
    ) -> "HubTrust":
        """Establish trust in the hub with this `status`, from the stored record or else from the pin.

        A pinned certificate was checked when the connection was made, so it authenticates the status.
        """
        if pin is None and kept is None:
            raise Unverified("hub", "the hub is unknown: pin its id, the fingerprint of a key, or its certificate")
        record = HubRecord(status.identity, status.signature, status.profile, status.limits, origin)
        anchors = [pin.key] if pin and pin.key else []
        try:
            for anchor in anchors or [status.identity.hub_id]:
                record.identity.verify(record.signature, anchor)
            if pin and pin.record and not record.identity.begins_after(pin.record):
                record.identity.check_follows(pin.record)
        except Unverified as error:
            hub_id = status.identity.hub_id.hex()
            raise Contradiction(
                Lie.WRONG_KEY, f"hub {hub_id} answered, but another hub is pinned: {error.reason}"
            ) from None
        trust = cls(kept or record)
        trust.learn(status)
        return trust

    def learn(self, status: HubStatus) -> bool:
        """Accept keys and limits of a status that continues the known record. Returns whether anything is new."""
        shown, known = status.identity, self.known.identity
        is_other = shown.is_other_incarnation(known)
        try:
            shown.check_pinned(known.hub_id)
            if is_other:
                shown.verify(status.signature, known.hub_id)
            elif len(shown.hub_keys) >= len(known.hub_keys):
                shown.check_follows(known)
                shown.verify(status.signature, known.hub_id)
            else:
                known.check_follows(shown)  # an older record is valid but has nothing new
        except Unverified as error:
            reason = f"its identity record does not continue the known one: {error.reason}"
            raise Contradiction(Lie.WRONG_KEY, reason, rival=_signed_record(status, known.hub_id)) from None
        if status.profile != self.known.profile:
            raise Unverified("hub", "its profile has changed, but a hub never changes its profile")
        if is_other:
            self._follow_incarnation(status)
            return True
        if len(shown.hub_keys) < len(known.hub_keys):
            return False
        before = self.known
        self._set(replace(before, identity=shown, signature=status.signature, limits=status.limits))
        return self.known != before

    def _follow_incarnation(self, status: HubStatus) -> None:
        """Follow the hub to its next incarnation. The user must accept it for each stream with receipts of another."""
        before, began = self.known, status.identity.signing_keys[0].valid_from
        if not status.identity.begins_after(before.identity):
            # Not proven: a network attacker can replay a record that was once signed.
            text = f"it answers as its incarnation of {shown_time(began)}, which is not after the known one of"
            text += f" {shown_time(before.identity.signing_keys[0].valid_from)}; two copies of the hub may run"
            raise Contradiction(Lie.FORKED_HISTORY, text)
        earlier = KeyHistory(before.identity, before.signature), *(before.earlier or ())
        record = HubRecord(status.identity, status.signature, status.profile, status.limits)
        self._set(replace(record, earlier=earlier[:MAX_RECOVERIES]))

    def record_of(self, head: Head) -> HubRecord:
        """The record of the incarnation that signed a receipt or a checkpoint."""
        found = self.history_of(head)
        if found is None:
            return self.known
        return replace(self.known, identity=found.identity, signature=found.signature, origin=None, earlier=None)

    def history_of(self, head: Head) -> KeyHistory | None:
        """The earlier incarnation of the hub that signed a receipt or a checkpoint."""
        for history in self.known.earlier or ():
            with suppress(Unverified):
                lineage(history.identity, None).verify_head(head, self.profile)
                return history
        return None

    def verify(self, head: Head) -> None:
        """Raise `Contradiction` unless a key of the hub signed it that was active at its `hub_ts` or in its epoch."""
        try:
            self.lineage.verify_head(head, self.profile)
        except Unverified:
            raise self._unsigned(head) from None

    def blame_key(self, error: Contradiction, status: HubStatus) -> Contradiction:
        """The same error, but with the key that made the signature if the hub's status reveals it."""
        head = error.statements[0]
        known = {key.hub_pk for key in self.known.identity.hub_keys}
        claimed = [key.hub_pk for key in status.identity.hub_keys] + [status.hub_pk]
        for hub_pk in claimed:
            if hub_pk not in known and signing.is_valid(hub_pk, head.signing_digest(), head.hub_sig):
                reason = f"it is signed by {hub_pk.hex()[:16]}…, which was never a key of this hub"
                return Contradiction(Lie.WRONG_KEY, reason, (head,))
        return error

    def _unsigned(self, head: Head) -> Contradiction:
        what = "the receipt" if isinstance(head, Receipt) else "the checkpoint"
        for key in self.known.identity.hub_keys:
            if signing.is_valid(key.hub_pk, head.signing_digest(), head.hub_sig):
                reason = f"{what} is signed by {key.hub_pk.hex()[:16]}…, which was not active at that time"
                return Contradiction(Lie.WRONG_KEY, reason, (head,))
        return Contradiction(Lie.SIGNATURE, f"no key of the hub signed {what}", (head,))


def _signed_record(status: HubStatus, hub_id: bytes) -> tuple[HubIdentity, IdentitySignature] | None:
    """The record in a status, if the keys of the hub with that id signed it."""
    try:
        status.identity.verify(status.signature, hub_id)
    except Unverified:
        return None
    return (status.identity, status.signature) if status.identity.hub_id == hub_id else None


MAX_POLICY_BYTES = 1 << 16


def read_policy(path: Path) -> WitnessPolicy:
    """Read a policy file: which witnesses to trust, and how many of them must have cosigned.

        threshold = 2

        [witnesses]
        alpha = "5f1c…"   # 64 hex digits
        beta = "77a1…"
        gamma = "0c9e…"

    Raises `Malformed` with the field that is wrong.
    """
    data = local_files.read_file(path, MAX_POLICY_BYTES)
    try:
        found = tomllib.loads(data.decode())
        return _policy(found)
    except ValueError as error:  # also of tomllib and of UTF-8
        raise Malformed(str(path), str(error)) from None


def _policy(found: dict[str, object]) -> WitnessPolicy:
    unknown = sorted(found.keys() - {"threshold", "witnesses"})
    if unknown:
        raise ValueError(f"there is no setting {unknown[0]!r}; a policy has threshold and the table witnesses")
    threshold, listed = found.get("threshold"), found.get("witnesses")
    if not isinstance(listed, dict) or not 1 <= len(listed) <= MAX_WITNESS_SIGS:
        raise ValueError(f"witnesses must be a table of 1 to {MAX_WITNESS_SIGS} names with public keys")
    keys = {name: _key(name, text) for name, text in listed.items()}
    if len(set(keys.values())) != len(keys):
        raise ValueError("two witnesses have the same key, so that one would count twice")
    if isinstance(threshold, bool) or not isinstance(threshold, int) or not 1 <= threshold <= len(keys):
        raise ValueError(f"threshold must be a number from 1 to {len(keys)}")
    return WitnessPolicy(threshold, keys)


def _key(name: str, text: object) -> bytes:
    try:
        key = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        key = b""
    if len(key) != PUBLIC_KEY_BYTES:
        raise ValueError(f"witnesses.{name} is not a public key of {2 * PUBLIC_KEY_BYTES} hex digits")
    return key
