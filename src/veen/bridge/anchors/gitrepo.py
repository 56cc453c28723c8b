"""A git repository as a backend: a commit for each statement, on a branch of its own.

The commit holds the statement as a file, and its parent is the anchor before it. Once it is pushed to where others keep
copies, nobody can take it back unseen. No working tree is needed or touched.
"""

import asyncio
import os
import subprocess
from pathlib import Path

from veen.bridge.anchors.statement import AnchorStatement
from veen.core import Malformed, Unavailable, Unverified
from veen.core.hashing import ht

BRANCH = "veen-anchors"
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

    def __init__(self, path: Path, branch: str = BRANCH, remote: str | None = None) -> None:
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
