"""An append-only file as a backend: one line for each statement, chained, so that no line before can be changed.

    number, digest of the statement, hash of the line before, hash of this line; then the time it was written

Whoever keeps a copy of the last line can tell that nothing before it was changed. A line that a crash cut short was
never answered for, and is taken off before the next is written.
"""

import asyncio
import fcntl
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import httpx

from plumbing.cli.extras import install_hint
from veen.bridge.anchors.statement import MAX_PROOF_BYTES, AnchorStatement
from veen.client import evidence_verify
from veen.client.client import Client
from veen.client.exchange import TimedOut, exchange, reason_of
from veen.core import Malformed, Unavailable, Unverified, cbor
from veen.core.hashing import HASH_BYTES, ht, u64be

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from rfc3161_client import TimeStampResponse


_FIELDS = 5


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    digest: bytes
    before: bytes
    ts: int

    @property
    def hash(self) -> bytes:
        return ht("veen/anchor-line", u64be(self.number) + self.digest + self.before + u64be(self.ts))

    def text(self) -> bytes:
        return f"{self.number} {self.digest.hex()} {self.before.hex()} {self.hash.hex()} {self.ts}\n".encode()


class FileLog:
    """One file."""

    kind = "file"

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def place(self) -> str:
        return str(self.path)

    async def publish(self, statement: AnchorStatement) -> bytes:
        # A write to a file that is opened so is on disk when it returns.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_DSYNC | os.O_CLOEXEC
        try:
            with open(os.open(self.path, flags, 0o644), "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                data = file.read()
                whole = data.rfind(b"\n") + 1
                if whole != len(data):
                    file.truncate(whole)
                lines = _read(data[:whole])
                before = lines[-1].hash if lines else bytes(HASH_BYTES)
                line = _Line(len(lines) + 1, _digest(statement), before, int(time.time()))
                _append(file, line.text(), whole)
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}") from None
        return cbor.encode([line.number, line.hash])

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        number, wanted = _place(proof)
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}") from None
        lines = _read(data[: data.rfind(b"\n") + 1])
        if number > len(lines):
            raise Unverified("anchor file", f"it has {len(lines)} lines, and line {number} was written")
        line = lines[number - 1]
        if line.hash != wanted or line.digest != _digest(statement):
            raise Unverified("anchor file", f"line {number} is another than was written")
        return line.ts


def _append(file: FileIO, text: bytes, size: int) -> None:
    """All of it, or the file is as it was: a full disk takes the beginning of a line."""
    try:
        view = memoryview(text)
        while view:
            view = view[os.write(file.fileno(), view) :]
    except OSError:
        with suppress(OSError):  # the next line takes it off where this does not
            file.truncate(size)
        raise


def _digest(statement: AnchorStatement) -> bytes:
    return ht("veen/anchor", statement.encode())


def _place(proof: bytes) -> tuple[int, bytes]:
    match cbor.decode(proof, "anchor proof"):
        case (int() as number, bytes() as wanted) if number >= 1:
            return number, wanted
    raise Malformed("anchor proof", "no line of an anchor file")


def _read(data: bytes) -> list[_Line]:
    """The lines, each chained to the one before. Raises `Unverified` at the first that is not."""
    lines: list[_Line] = []
    for text in data.splitlines():
        before = lines[-1].hash if lines else bytes(HASH_BYTES)
        parts = text.decode("ascii", "replace").split(" ")
        number = len(lines) + 1
        try:
            if len(parts) != _FIELDS:
                raise ValueError
            line = _Line(int(parts[0]), bytes.fromhex(parts[1]), bytes.fromhex(parts[2]), int(parts[4]))
            right = line.text() == text + b"\n" and line.number == number and line.before == before
        except (ValueError, OverflowError):
            right = False
        if not right:
            raise Unverified("anchor file", f"line {number} does not follow on the one before it")
        lines.append(line)
    return lines


DEFAULT_BRANCH = "veen-anchors"
_FILE = "anchor.cbor"
_WHO = {
    "GIT_AUTHOR_NAME": "veen",
    "GIT_AUTHOR_EMAIL": "veen@localhost",
    "GIT_COMMITTER_NAME": "veen",
    "GIT_COMMITTER_EMAIL": "veen@localhost",
}
_TRIES = 5
_DIGITS = (40, 64)


class GitRepo:
    """One branch of one repository; with `remote`, each anchor is pushed there."""

    kind = "git"

    def __init__(self, path: Path, branch: str = DEFAULT_BRANCH, remote: str | None = None) -> None:
        self.path = path
        self.branch = branch
        self._ref = f"refs/heads/{branch}"
        self._remote = remote

    @property
    def place(self) -> str:
        return f"{self.path}#{self.branch}"

    async def publish(self, statement: AnchorStatement) -> bytes:
        blob = await self._git("hash-object", "-w", "--stdin", given=statement.encode())
        tree = await self._git("mktree", given=f"100644 blob {blob}\t{_FILE}\n".encode())
        message = f"anchor {ht('veen/anchor', statement.encode()).hex()}"
        for _ in range(_TRIES):
            before = await self._head()
            parents = () if before is None else ("-p", before)
            commit = await self._git("commit-tree", tree, *parents, "-m", message)
            try:
                await self._git("update-ref", self._ref, commit, before or "0" * len(commit))
            except Unavailable:
                continue  # someone else anchored meanwhile: after theirs, then
            if self._remote is not None:
                await self._git("push", "--quiet", self._remote, f"{self._ref}:{self._ref}")
            return commit.encode()
        raise Unavailable(f"{self.path}: branch {self.branch} cannot be moved on")

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        commit = proof.decode("ascii", "replace")
        if len(commit) not in _DIGITS or any(digit not in "0123456789abcdef" for digit in commit):
            raise Malformed("anchor proof", "no commit")
        head = await self._head()
        try:
            if head is None:
                raise Unavailable("there is no such branch")
            await self._git("merge-base", "--is-ancestor", commit, head)
            found = await self._run("cat-file", "blob", f"{commit}:{_FILE}")
        except Unavailable as error:
            raise Unverified("anchor commit", f"{commit[:12]} is no anchor on branch {self.branch}: {error}") from None
        if found != statement.encode():
            raise Unverified("anchor commit", f"{commit[:12]} holds another statement")
        return int(await self._git("show", "--no-patch", "--format=%ct", commit))

    async def _head(self) -> str | None:
        try:
            return await self._git("rev-parse", "--verify", "--quiet", self._ref)
        except Unavailable:
            await self._git("rev-parse", "--git-dir")  # says so where there is no repository at all
            return None

    async def _git(self, *arguments: str, given: bytes = b"") -> str:
        return (await self._run(*arguments, given=given)).decode("utf-8", "replace").strip()

    async def _run(self, *arguments: str, given: bytes = b"") -> bytes:
        return await asyncio.to_thread(self._call, arguments, given)

    def _call(self, arguments: tuple[str, ...], given: bytes) -> bytes:
        # What a hook or another command of git set for itself would lead elsewhere.
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _WHO
        command = ["git", "-C", str(self.path), *arguments]
        try:
            ran = subprocess.run(command, input=given, capture_output=True, env=env)
        except OSError as error:
            raise Unavailable(f"git: {error.strerror}") from None
        if ran.returncode:
            said = ran.stderr.decode("utf-8", "replace").strip() or f"git {arguments[0]} ended with {ran.returncode}"
            raise Unavailable(f"{self.path}: {said}")
        return ran.stdout


DEFAULT_STREAM = "anchors"


class OtherHub:
    """A stream of another hub. `pin` is that hub's id or a fingerprint: the evidence must be its word."""

    kind = "hub"

    def __init__(self, client: Client | None, pin: bytes, stream: str = DEFAULT_STREAM) -> None:
        """Without a client it can only verify, which asks nobody."""
        self._client = client
        self._pin = pin
        self._stream = stream

    @property
    def place(self) -> str:
        return f"{self._client.url if self._client else self._pin.hex()}#{self._stream}"

    async def publish(self, statement: AnchorStatement) -> bytes:
        if self._client is None:
            raise Unavailable("the hub to publish at is not known")
        sent = await self._client.send(self._stream, statement.encode(), schema=statement.SCHEMA)
        claim = f"anchor of {statement.root.hex()}"
        shown = await self._client.evidence(
            self._stream, [sent.stream_seq], claim=claim, disclose=True, epoch=sent.epoch
        )
        return shown.encode()

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        report = evidence_verify.verify(proof, self._pin)
        for entry in report.entries:
            if entry.opened is None or entry.opened.header.schema != statement.SCHEMA:
                continue
            if entry.opened.body == statement.encode():
                return entry.receipt.hub_ts
        raise Unverified("anchor evidence", "it shows no entry that says this")


_ASKED, _ANSWERED = "application/timestamp-query", "application/timestamp-reply"
_ANSWER_S = 30.0


class TimeStampingAuthority:
    """One authority, by its address and the root certificates that its own must lead to."""

    kind = "tsa"

    def __init__(self, url: str | None, roots: Path, *, answer_s: float = _ANSWER_S) -> None:
        """Without `url` it can only verify. Raises `Unavailable` where the certificates cannot be read."""
        from cryptography import x509

        self.url = url
        self._answer_s = answer_s
        try:
            self._roots: list[Certificate] = x509.load_pem_x509_certificates(roots.read_bytes())
        except (OSError, ValueError) as error:
            raise Unavailable(f"{roots}: no certificates in PEM can be read from it: {error}") from None

    @property
    def place(self) -> str:
        return self.url or "a time-stamping authority"

    async def publish(self, statement: AnchorStatement) -> bytes:
        rfc3161 = _library()
        if self.url is None:
            raise Unavailable("the address of the time-stamping authority is not known")
        data = statement.encode()
        builder = rfc3161.TimestampRequestBuilder().data(data).hash_algorithm(rfc3161.HashAlgorithm.SHA256)
        request = builder.nonce(nonce=True).cert_request(cert_request=True).build()
        answer = await self._post(request.as_bytes())
        token = _decoded(answer)
        if _refusal(token):
            raise Unavailable(f"{self.url}: it refuses: {_refusal(token)}")
        if token.tst_info.nonce != request.nonce:
            raise Unverified("time stamp", "it answers another request")
        return answer

    async def _post(self, query: bytes) -> bytes:
        assert self.url is not None
        try:
            async with httpx.AsyncClient(follow_redirects=False) as http:
                headers = {"content-type": _ASKED, "accept-encoding": "identity"}
                answer, content = await exchange(
                    http, "POST", self.url, limit_s=self._answer_s, content=query, headers=headers
                )
        except TimedOut as late:
            late.add_note("try again later, or use another time-stamping authority")
            raise
        except httpx.HTTPError as error:
            raise Unavailable(f"{self.url}: {reason_of(error)}") from None
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if answer.status_code != httpx.codes.OK or kind != _ANSWERED or len(content) > MAX_PROOF_BYTES:
            raise Unavailable(f"{self.url}: it answers {answer.status_code} with {kind or 'nothing'}, not a time stamp")
        return content

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        rfc3161 = _library()
        token = _decoded(proof)
        if _refusal(token):
            raise Unverified("time stamp", f"it is a refusal: {_refusal(token)}")
        builder = rfc3161.VerifierBuilder()
        for root in self._roots:
            builder = builder.add_root_certificate(root)
        try:
            builder.build().verify_message(token, statement.encode())
        except (rfc3161.VerificationError, ValueError) as error:
            raise Unverified("time stamp", str(error)) from None
        return int(token.tst_info.gen_time.timestamp())


def _decoded(data: bytes) -> "TimeStampResponse":
    try:
        return cast("TimeStampResponse", _library().decode_timestamp_response(data))
    except ValueError as error:
        raise Malformed("time stamp", str(error)) from None


def _refusal(token: "TimeStampResponse") -> str | None:
    """What a token says that is none."""
    status = _library().PKIStatus
    if status(token.status) is status.GRANTED:
        return None
    return ", ".join(map(str, token.status_string or ())) or str(status(token.status).name).lower()


def _library() -> ModuleType:
    try:
        import rfc3161_client
    except ImportError:
        needed = "rfc3161-client must be installed for time stamps: "
        raise Unavailable(needed + install_hint("anchor")) from None
    return rfc3161_client
