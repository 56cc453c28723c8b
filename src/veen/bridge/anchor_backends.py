"""Anchor backends: an append-only file, a git branch, a stream of another hub, a time-stamping authority."""

import asyncio
import fcntl
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import httpx
from cryptography import x509

from plumbing.cli import install_hint
from plumbing.durable import extend
from veen.bridge.anchors import MAX_PROOF_BYTES, AnchorStatement
from veen.client import evidence
from veen.client.client import Client
from veen.client.exchange import TimedOut, exchange, reason_of
from veen.core import Malformed, Unavailable, Unverified, cbor
from veen.core.hashing import HASH_BYTES, ht, u64be

if TYPE_CHECKING:
    from rfc3161_client import TimeStampResponse

_LINE_FIELDS = 5


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
    """An append-only file with one line per statement, chained by hashes.

        number, digest of the statement, hash of the line before, hash of this line, time of writing

    A copy of the last line proves that no line before it has changed. A crash may leave an incomplete last line; its
    publication was never confirmed, and the next publication removes it.
    """

    kind = "file"

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def place(self) -> str:
        return str(self.path)

    async def publish(self, statement: AnchorStatement) -> bytes:
        # O_DSYNC: the line is on disk when write returns.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_DSYNC | os.O_CLOEXEC
        try:
            with open(os.open(self.path, flags, 0o644), "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                data = file.read()
                complete = data.rfind(b"\n") + 1
                if complete != len(data):
                    file.truncate(complete)
                lines = _read_lines(data[:complete])
                before = lines[-1].hash if lines else bytes(HASH_BYTES)
                line = _Line(len(lines) + 1, _digest(statement), before, int(time.time()))
                extend(file.fileno(), line.text(), complete)
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}") from None
        return cbor.encode([line.number, line.hash])

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        number, expected_hash = _line_of(proof)
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}") from None
        lines = _read_lines(data[: data.rfind(b"\n") + 1])
        if number > len(lines):
            raise Unverified("anchor file", f"has {len(lines)} lines, but the anchor is in line {number}")
        line = lines[number - 1]
        if line.hash != expected_hash or line.digest != _digest(statement):
            raise Unverified("anchor file", f"line {number} is not the line that was written")
        return line.ts


def _digest(statement: AnchorStatement) -> bytes:
    return ht("veen/anchor", statement.encode())


def _line_of(proof: bytes) -> tuple[int, bytes]:
    match cbor.decode(proof, "anchor proof"):
        case (int() as number, bytes() as line_hash) if number >= 1:
            return number, line_hash
    raise Malformed("anchor proof", "does not name a line of an anchor file")


def _read_lines(data: bytes) -> list[_Line]:
    """Parse the lines and check the hash chain. Raises `Unverified` at the first broken line."""
    lines: list[_Line] = []
    for text in data.splitlines():
        before = lines[-1].hash if lines else bytes(HASH_BYTES)
        parts = text.decode("ascii", "replace").split(" ")
        number = len(lines) + 1
        try:
            if len(parts) != _LINE_FIELDS:
                raise ValueError
            line = _Line(int(parts[0]), bytes.fromhex(parts[1]), bytes.fromhex(parts[2]), int(parts[4]))
            valid = line.text() == text + b"\n" and line.number == number and line.before == before
        except (ValueError, OverflowError):
            valid = False
        if not valid:
            raise Unverified("anchor file", f"line {number} does not continue the hash chain")
        lines.append(line)
    return lines


DEFAULT_BRANCH = "veen-anchors"
_ANCHOR_FILE = "anchor.cbor"
_COMMIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "veen",
    "GIT_AUTHOR_EMAIL": "veen@localhost",
    "GIT_COMMITTER_NAME": "veen",
    "GIT_COMMITTER_EMAIL": "veen@localhost",
}
_UPDATE_ATTEMPTS = 5
_COMMIT_HEX_DIGITS = (40, 64)


class GitRepo:
    """A branch of a git repository with one commit per statement; with `remote`, each anchor is pushed there.

    The commit contains the statement as a file, and its parent is the previous anchor. Once it is pushed to a
    repository that others copy, it cannot be removed without notice. No working tree is needed or changed.
    """

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
        blob = await self._git("hash-object", "-w", "--stdin", stdin=statement.encode())
        tree = await self._git("mktree", stdin=f"100644 blob {blob}\t{_ANCHOR_FILE}\n".encode())
        message = f"anchor {ht('veen/anchor', statement.encode()).hex()}"
        for _ in range(_UPDATE_ATTEMPTS):
            before = await self._head()
            parents = () if before is None else ("-p", before)
            commit = await self._git("commit-tree", tree, *parents, "-m", message)
            try:
                await self._git("update-ref", self._ref, commit, before or "0" * len(commit))
            except Unavailable:
                continue  # another process anchored meanwhile: retry on top of its commit
            if self._remote is not None:
                await self._git("push", "--quiet", self._remote, f"{self._ref}:{self._ref}")
            return commit.encode()
        raise Unavailable(f"{self.path}: cannot update branch {self.branch}: it changed {_UPDATE_ATTEMPTS} times")

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        commit = proof.decode("ascii", "replace")
        if len(commit) not in _COMMIT_HEX_DIGITS or any(digit not in "0123456789abcdef" for digit in commit):
            raise Malformed("anchor proof", "not a commit id")
        head = await self._head()
        try:
            if head is None:
                raise Unavailable("the branch does not exist")
            await self._git("merge-base", "--is-ancestor", commit, head)
            found = await self._run("cat-file", "blob", f"{commit}:{_ANCHOR_FILE}")
        except Unavailable as error:
            raise Unverified(
                "anchor commit", f"{commit[:12]} is not an anchor on branch {self.branch}: {error}"
            ) from None
        if found != statement.encode():
            raise Unverified("anchor commit", f"{commit[:12]} contains another statement")
        return int(await self._git("show", "--no-patch", "--format=%ct", commit))

    async def _head(self) -> str | None:
        try:
            return await self._git("rev-parse", "--verify", "--quiet", self._ref)
        except Unavailable:
            await self._git("rev-parse", "--git-dir")  # raises if there is no repository at all
            return None

    async def _git(self, *arguments: str, stdin: bytes = b"") -> str:
        return (await self._run(*arguments, stdin=stdin)).decode("utf-8", "replace").strip()

    async def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return await asyncio.to_thread(self._call, arguments, stdin)

    def _call(self, arguments: tuple[str, ...], stdin: bytes) -> bytes:
        # Variables that a hook or another git command has set would select another repository.
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _COMMIT_IDENTITY
        command = ["git", "-C", str(self.path), *arguments]
        try:
            ran = subprocess.run(command, input=stdin, capture_output=True, env=env)
        except OSError as error:
            raise Unavailable(f"git: {error.strerror}") from None
        if ran.returncode:
            reason = ran.stderr.decode("utf-8", "replace").strip() or f"git {arguments[0]} exited with {ran.returncode}"
            raise Unavailable(f"{self.path}: {reason}")
        return ran.stdout


DEFAULT_STREAM = "anchors"


class OtherHub:
    """A stream of another hub. The proof is evidence signed by that hub; `pin` is its id or a fingerprint."""

    kind = "hub"

    def __init__(self, client: Client | None, pin: bytes, stream: str = DEFAULT_STREAM) -> None:
        """Without a client it can only verify, which works offline."""
        self._client = client
        self._pin = pin
        self._stream = stream

    @property
    def place(self) -> str:
        return f"{self._client.url if self._client else self._pin.hex()}#{self._stream}"

    async def publish(self, statement: AnchorStatement) -> bytes:
        if self._client is None:
            raise Unavailable("publishing needs a client of the other hub")
        sent = await self._client.send(self._stream, statement.encode(), schema=statement.SCHEMA)
        claim = f"anchor of {statement.root.hex()}"
        shown = await self._client.evidence(
            self._stream, [sent.stream_seq], claim=claim, disclose=True, epoch=sent.epoch
        )
        return shown.encode()

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        report = evidence.verify(proof, self._pin)
        for entry in report.entries:
            if entry.opened is None or entry.opened.header.schema != statement.SCHEMA:
                continue
            if entry.opened.body == statement.encode():
                return entry.receipt.hub_ts
        raise Unverified("anchor evidence", "contains no entry with this statement")


_QUERY_TYPE, _REPLY_TYPE = "application/timestamp-query", "application/timestamp-reply"
_REPLY_TIMEOUT_S = 30.0


class TimeStampingAuthority:
    """An RFC 3161 authority: it signs the hash of a statement and the time.

    The token can be verified offline against `roots`, the root certificates of the authority.
    """

    kind = "tsa"

    def __init__(self, url: str | None, roots: Path, *, answer_s: float = _REPLY_TIMEOUT_S) -> None:
        """Without `url` it can only verify. Raises `Unavailable` if the certificates cannot be read."""
        self.url = url
        self._answer_s = answer_s
        try:
            self._roots = x509.load_pem_x509_certificates(roots.read_bytes())
        except (OSError, ValueError) as error:
            raise Unavailable(f"{roots}: cannot read PEM certificates: {error}") from None

    @property
    def place(self) -> str:
        return self.url or "a time-stamping authority"

    async def publish(self, statement: AnchorStatement) -> bytes:
        rfc3161 = _library()
        if self.url is None:
            raise Unavailable("publishing needs the address of a time-stamping authority")
        data = statement.encode()
        builder = rfc3161.TimestampRequestBuilder().data(data).hash_algorithm(rfc3161.HashAlgorithm.SHA256)
        request = builder.nonce(nonce=True).cert_request(cert_request=True).build()
        answer = await self._post(request.as_bytes())
        token = _decode_token(answer)
        if refusal := _refusal(token):
            raise Unavailable(f"{self.url}: the authority refused the request: {refusal}")
        if token.tst_info.nonce != request.nonce:
            raise Unverified("time stamp", "answers another request (the nonce differs)")
        return answer

    async def _post(self, query: bytes) -> bytes:
        assert self.url is not None
        try:
            async with httpx.AsyncClient(follow_redirects=False) as http:
                headers = {"content-type": _QUERY_TYPE, "accept-encoding": "identity"}
                answer, content = await exchange(
                    http, "POST", self.url, limit_s=self._answer_s, content=query, headers=headers
                )
        except TimedOut as late:
            late.add_note("try again later, or use another time-stamping authority")
            raise
        except httpx.HTTPError as error:
            raise Unavailable(f"{self.url}: {reason_of(error)}") from None
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if answer.status_code != httpx.codes.OK or kind != _REPLY_TYPE or len(content) > MAX_PROOF_BYTES:
            raise Unavailable(
                f"{self.url}: answered {answer.status_code} with {kind or 'no content type'}, not a time stamp"
            )
        return content

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        rfc3161 = _library()
        token = _decode_token(proof)
        if refusal := _refusal(token):
            raise Unverified("time stamp", f"the token is a refusal: {refusal}")
        builder = rfc3161.VerifierBuilder()
        for root in self._roots:
            builder = builder.add_root_certificate(root)
        try:
            builder.build().verify_message(token, statement.encode())
        except Exception as error:  # of the library, and of those that it uses for certificates
            raise Unverified("time stamp", str(error)) from error
        return int(token.tst_info.gen_time.timestamp())


def _decode_token(data: bytes) -> "TimeStampResponse":
    """A response with a known status, and with a token that can be read if it grants one."""
    rfc3161 = _library()
    try:
        token = cast("TimeStampResponse", rfc3161.decode_timestamp_response(data))
        if rfc3161.PKIStatus(token.status) is rfc3161.PKIStatus.GRANTED:
            token.tst_info.gen_time  # noqa: B018  raises if there is no token
    except ValueError as error:
        raise Malformed("time stamp", str(error)) from None
    return token


def _refusal(token: "TimeStampResponse") -> str | None:
    """The reason in a response that grants no token."""
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
