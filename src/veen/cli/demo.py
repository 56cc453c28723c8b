"""`veen demo`, a short demo of hub, clients and verification, and `veen quickstart`. Both run other commands."""

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from plumbing.cli import ascii_fallback
from plumbing.cli.command import Misuse, argument, command, is_colourful, option, single
from veen.cli.app import app as veen
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.exit_status import DAMAGED_STATUS, STATUS
from veen.cli.kit.result import Result
from veen.client.evidence import Evidence
from veen.core import Refused, Unavailable, Unverified

app = single("demo")


@command(app, "demo", "veen demo", "veen demo --keep")
def demo(
    keep: Annotated[bool, option("--keep", "keep the folder of the demo")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run hub, client and verification as a short demo.

    The demo works in a temporary folder: a hub starts, three people create keys, one issues a capability to another,
    messages are sent, followed and proved to a stranger, a copy of the log is tampered with, and the hub rotates its
    key. Every line after a $ is a command as you would type it. The folder is removed without --keep, and nothing
    outside it is touched.
    """
    run(DemoStage(as_json), keep=keep)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TERMINATED_STATUS = 143


class _Interrupted(BaseException):
    """A signal arrived. A BaseException of its own, because the demo handles the SystemExit of commands."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def handling_signals(handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise in the main thread on SIGINT and SIGTERM, so the processes of the demo are stopped too."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise _Interrupted(number)

    with handling_signals(end):
        try:
            yield
        except _Interrupted as ended:
            if ended.number == signal.SIGTERM:
                sys.exit(_TERMINATED_STATUS)
            raise KeyboardInterrupt from None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer signals until the block ends: a process started in it must be registered before the demo can stop."""
    pending: list[int] = []
    with handling_signals(lambda number, frame: pending.append(number)):
        yield
    if pending:
        signal.raise_signal(pending[0])


@contextmanager
def environment(env: Mapping[str, str]) -> Iterator[None]:
    """Replace the whole environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


_WIDTH = 100
_INDENT = "   "


@dataclass(frozen=True, slots=True)
class DemoOutput:
    """A scene whose claim was shown."""

    title: str
    claim: str
    seconds: float


class DemoStage:
    """Writes the demo to standard output. With `as_json` it writes one document at the end."""

    def __init__(self, as_json: bool) -> None:
        self.shown: list[DemoOutput] = []
        self._as_json = as_json
        self._colour = is_colourful(sys.stdout)
        self._width = min(shutil.get_terminal_size().columns, _WIDTH) if sys.stdout.isatty() else _WIDTH
        self._began = time.monotonic()

    def open(self, folder: Path) -> None:
        self._line(f"{self._paint('veen demo', bold=True)}: a hub, three people and a stranger, in {folder}")

    @contextmanager
    def scene(self, title: str, claim: str) -> Iterator[None]:
        """Print a scene; the claim is shown if the block does not raise."""
        self._line()
        self._line(self._paint(f"{len(self.shown) + 1}  {title}", bold=True))
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self.shown.append(DemoOutput(title, claim, seconds))
        self._claim(claim, seconds)

    def typed(self, person: str, command: str) -> None:
        """Print a command at a person's prompt."""
        prompt = f"{person}$ "
        room = self._width - len(_INDENT) - 2
        first, *rest = _wrapped(prompt + command, room)
        lines = [self._paint(prompt, fg="cyan") + first[len(prompt) :], *(_INDENT + line for line in rest)]
        self._line(_INDENT + f" \\\n{_INDENT}".join(lines))

    def said(self, *lines: str) -> None:
        """Print the important part of a command's output."""
        for line in lines:
            for part in textwrap.wrap(line, self._width - 2 * len(_INDENT), subsequent_indent="  ") or [""]:
                self._line(_INDENT * 2 + self._paint(part, dim=True))

    def close(self, kept: Path | None) -> None:
        """Print the summary with times."""
        total = time.monotonic() - self._began
        if self._as_json:
            scenes = [{"title": one.title, "claim": one.claim, "seconds": round(one.seconds, 3)} for one in self.shown]
            output.document({"shown": scenes, "seconds": round(total, 3), "folder": str(kept) if kept else None})
            return
        self._line()
        self._line(self._paint("shown", bold=True))
        for one in self.shown:
            self._claim(one.claim, one.seconds)
        self._line()
        folder = f"the files are in {kept}" if kept else "the folder of the demo is removed"
        self._line(f"{_INDENT}{self._timed(folder, total, used=len(_INDENT))}")

    def _claim(self, claim: str, seconds: float) -> None:
        mark = ascii_fallback.for_stream("✓")
        text = self._timed(claim, seconds, used=len(_INDENT) + len(mark) + 1)
        self._line(f"{_INDENT}{self._paint(mark, fg='green')} {text}")

    def _timed(self, text: str, seconds: float, used: int = 0) -> str:
        took = f"{seconds:.2f} s"
        room = self._width - used - len(took) - 1
        *before, last = textwrap.wrap(text, room)
        return f"\n{' ' * used}".join([*before, f"{last:<{room}} {self._paint(took, dim=True)}"])

    def _paint(self, text: str, **style: Any) -> str:
        return typer.style(text, **style) if self._colour else text

    def _line(self, text: str = "") -> None:
        if not self._as_json:
            sys.stdout.write(ascii_fallback.for_stream(text) + "\n")
            sys.stdout.flush()


def _wrapped(command: str, room: int) -> list[str]:
    """A command split into lines before options."""
    lines: list[str] = []
    for part in re.split(r" (?=--)", command):
        if lines and len(lines[-1]) + 1 + len(part) <= room:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


_ENV_PREFIX = "VEEN_"


@dataclass(frozen=True, slots=True)
class Ran:
    """The output and exit status of a command."""

    status: int
    out: str
    err: str

    def facts(self) -> dict[str, str]:
        """Names and values of tab-separated output."""
        return dict(line.split("\t", 1) for line in self.out.splitlines() if "\t" in line)

    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        first = next((line for line in self.err.splitlines() if line.startswith("veen: error: ")), self.err)
        return first.removeprefix("veen: ")


class Person:
    """A participant. `home` separates their contexts from those of the others and of the real user."""

    def __init__(self, name: str, home: Path, stage: DemoStage) -> None:
        self.name = name
        self._stage = stage
        home.mkdir(parents=True)
        self._own = {name: str(home) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")}
        if path := os.environ.get("PYTHONPATH"):  # absolute, because commands run in other folders
            self._own["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in path.split(os.pathsep))

    def env(self) -> dict[str, str]:
        """The environment of their commands."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_ENV_PREFIX)}
        return {**kept, **self._own}

    def does(self, command: str, *, ends: int = 0) -> Ran:
        """Run a command in this process. Raises if the exit status is not `ends`."""
        self._stage.typed(self.name, f"veen {command}")
        return self._checked(command, self.does_unseen(command), ends)

    def does_unseen(self, command: str) -> Ran:
        """Run a command without showing it, with any exit status."""
        return run_here(shlex.split(command), self.env())

    def does_apart(
        self, command: str, *, ends: int = 0, cwd: Path | None = None, given: str | None = None, shown: str = ""
    ) -> Ran:
        """Run a command in its own process; `given` is its standard input."""
        self._stage.typed(self.name, shown or f"veen {command}")
        ran = subprocess.run(
            [*VEEN, *shlex.split(command)], env=self.env(), cwd=cwd, input=given or "", capture_output=True, text=True
        )
        return self._checked(command, Ran(ran.returncode, ran.stdout, ran.stderr), ends)

    def starts(self, command: str, errors: Path) -> subprocess.Popen[str]:
        """Start a command that runs until it is terminated."""
        self._stage.typed(self.name, f"veen {command} &")
        with errors.open("w") as kept:
            return subprocess.Popen(
                [*VEEN, *shlex.split(command)],
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=kept,
                text=True,
            )

    def _checked(self, command: str, ran: Ran, ends: int) -> Ran:
        if ran.status != ends:
            raise Unavailable(f"veen {command} exited with {ran.status}, not {ends}: {ran.err.strip()}")
        return ran


VEEN = (sys.executable, "-m", "veen.cli")


def run_here(arguments: list[str], env: Mapping[str, str]) -> Ran:
    """Run a command in this process, with this environment."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with environment(env), redirect_stdout(out), redirect_stderr(err):
        try:
            get_command(veen).main(arguments, "veen")
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 0
    return Ran(status, out.getvalue(), err.getvalue())


_LINES = 1_000
_FIRST = "door 4 opened by badge 17"
_REFUSED = STATUS[Refused][0]
_UNVERIFIED = STATUS[Unverified][0]


def run(stage: DemoStage, *, keep: bool) -> None:
    """Run the demo in a temporary folder."""
    with ending_on_signals():
        folder = Path(tempfile.mkdtemp(prefix="veen-demo-"))
        finished = False
        try:
            story = Story(stage, folder)
            with chdir(folder), story:
                stage.open(folder)
                story.play()
            finished = True
        finally:
            if not (finished and keep):
                shutil.rmtree(folder, ignore_errors=not finished)
    stage.close(folder if keep else None)


class Story:
    """The participants, and the values that scenes pass on."""

    def __init__(self, stage: DemoStage, folder: Path) -> None:
        self._stage = stage
        self._folder = folder
        self._running = ExitStack()  # stops the processes of the demo in every case
        people = [
            Person(name, folder / ".homes" / name, stage) for name in ("operator", "writer", "reader", "stranger")
        ]
        self._operator, self._writer, self._reader, self._stranger = people
        self._entries = 0

    def __enter__(self) -> None:
        self._running.__enter__()

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def play(self) -> None:
        self._keys()
        self._serve()
        self._authorize()
        self._send()
        self._prove()
        self._tamper()
        self._rotate()

    def _keys(self) -> None:
        claim = "three people have their own keys, and only the reader's key opens the stream"
        with self._stage.scene("keys", claim):
            for person in (self._operator, self._writer, self._reader):
                person.does(f"keygen --out {person.name} --no-passphrase")
            self._reader.does("stream-key create doors --client reader")
            self._reader.does("stream-key export doors --public --out doors.key --client reader")
            self._writer.does("stream-key import doors.key --client writer")

    def _serve(self) -> None:
        with self._stage.scene("a hub", "a hub runs and accepts the operator's capabilities"):
            issuer = self._operator.does("card operator").facts()["id_sign"]
            self._stage.said(f"id_sign {issuer}")
            self._hub_id = self._operator.does("hub init --data-dir hub --no-root").facts()["hub_id"]
            self._stage.said(f"hub_id {self._hub_id}")
            self._issuer = issuer
            self._url = self._start("127.0.0.1:0")
            for person in (self._operator, self._writer, self._reader):
                person.does(f"context add door --hub {self._url} --client {person.name} --stream doors")

    def _start(self, listen: str) -> str:
        """Start the hub and return its URL."""
        start = f"hub start --data-dir hub --listen {listen} --issuer {self._issuer}"
        with uninterrupted():
            url = self._operator.does(start).facts()["url"]
            self._running.callback(self._operator.does_unseen, "hub stop --data-dir hub")
        self._stage.said(f"url {url}")
        return url

    def _stop(self) -> None:
        self._operator.does("hub stop --data-dir hub")

    def _authorize(self) -> None:
        with self._stage.scene("permission to write", "the hub rejects a capability of an unknown issuer"):
            self._writer.does(
                "cap issue --issuer writer --subject writer --stream doors --ttl 3600 --hub hub --out own.cap"
            )
            refused = self._writer.does(f'send --pin hub --cap own.cap --body "{_FIRST}"', ends=_REFUSED)
            self._stage.said(refused.error)
            self._operator.does(
                "cap issue --issuer operator --subject writer/card.cbor --stream doors --ttl 3600 --hub hub "
                "--out writer.cap"
            )
            self._writer.does("cap authorize writer.cap")

    def _send(self) -> None:
        claim = f"{_LINES + 2:,} messages are sealed, receipted, verified, and read as they arrive"
        with self._stage.scene("send and follow", claim):
            with uninterrupted():
                follower = self._reader.starts(
                    "stream --follow --pin hub --save-attachments saved", Path("follower.log")
                )
                self._running.callback(_end, follower)
            sent = self._writer.does(f'send --body "{_FIRST}"').facts()
            self._stage.said(f"entry {sent['stream_seq']}, verified: {sent['verified']}")
            self._read(follower, 1)
            sealed = self._operator.does("stream --pin hub").rows()[0][3]
            if sealed != "(sealed)":
                raise Unverified("entry", f"a client without the reader key sees {sealed!r}")
            self._stage.said(f"operator sees 1: {sealed}")
            Path("picture.ppm").write_bytes(_picture())
            self._writer.does('send --body "who it was" --attach picture.ppm')
            saved = self._read(follower, 2)
            if Path(saved).read_bytes() != _picture():
                raise Unverified("attachment", "the saved file differs from the one that was sent")
            lines = "".join(f"door {number % 7} closed\n" for number in range(_LINES))
            many = self._writer.does_apart("send --lines", given=lines, shown="veen send --lines < doors.log").facts()
            self._stage.said(f"{many['sent']} sent in {many['seconds']} s, verified: {many['verified']}")
            self._entries = int(many["last_seq"])
            self._read(follower, self._entries)
            _end(follower)

    def _read(self, follower: subprocess.Popen[str], upto: int) -> str:
        """Wait until the reader has entry `upto`, and return its files."""
        assert follower.stdout is not None
        for line in follower.stdout:
            seq, _, _, text, files = line.rstrip("\n").split("\t")
            if int(seq) == upto:
                self._stage.said(f"reader sees {seq}: {text}" + (f" + {files}" if files else ""))
                return files
        raise Unavailable(f"the reader exited: {Path('follower.log').read_text().strip()}")

    def _prove(self) -> None:
        claim = "a stranger verifies entry 1 without the hub; with one bit changed, verification fails"
        with self._stage.scene("proof to a stranger", claim):
            self._reader.does('evidence make 1 --disclose --claim "who opened door 4" --out door.evidence')
            self._writer.does("receipt 1 --out old.receipt")
            self._stop()
            apart = self._folder / "elsewhere"
            apart.mkdir()
            shutil.copy("door.evidence", apart)
            verify = f"evidence verify door.evidence --pin {self._hub_id}"
            found = self._stranger.does_apart(verify, cwd=apart)
            entry = next(row for row in found.rows() if row[0] == "entry")
            if entry[-1] != _FIRST or int(entry[2]) != self._entries:
                raise Unverified("evidence", f"it shows {entry[-1]!r}")
            self._stage.said(f"{found.facts()['verdict']}: entry 1 of {entry[2]} says {entry[-1]!r}")
            _flip_a_bit(
                apart / "door.evidence", Evidence.decode(Path("door.evidence").read_bytes()).exhibits[0].msg.sig
            )
            self._stage.said("one bit of the file is changed")
            self._stage.said(self._stranger.does_apart(verify, cwd=apart, ends=_UNVERIFIED).error)

    def _tamper(self) -> None:
        claim = f"one changed bit in a copy of the log of {self._entries:,} entries is found and located"
        with self._stage.scene("a tampered log", claim):
            shutil.copytree("hub", "copy")
            chunk = max(Path("copy", "log").rglob("chunk-*.log"), key=lambda path: path.stat().st_size)
            _flip_a_bit(chunk)
            self._stage.said("the data directory is copied, and one bit of the copy is changed")
            found = self._operator.does("fsck copy", ends=DAMAGED_STATUS)
            severity, _, at, what, *_ = found.rows()[0]
            self._stage.said(f"{severity}: entry {at}: {what}")
            clean = self._operator.does("fsck hub").facts()
            self._stage.said(f"{clean['verdict']}: {clean['checked']}")

    def _rotate(self) -> None:
        claim = "the hub has a new key, and signatures of the old and the new key both verify"
        with self._stage.scene("a new hub key", claim):
            rotated = self._operator.does("hub rotate-key --data-dir hub").facts()
            self._start(self._url.removeprefix("http://"))
            # The new key is valid from the second after the last receipt.
            time.sleep(max(0.0, int(rotated["valid_from"]) - time.time()))
            sent = self._writer.does('send --body "signed with the new key"').facts()
            self._writer.does(f"receipt {sent['stream_seq']} --out new.receipt")
            rows = self._writer.does("verify old.receipt new.receipt").rows()
            for file, what, seq, _, by, *_ in rows:
                self._stage.said(f"{file}: {what} of entry {seq}, signed by {by}")
            if [row[4] for row in rows] != ["key 1 of the hub", "key 2 of the hub"]:
                raise Unverified("receipts", "they are not signed by the old and the new key")
            self._stop()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _flip_a_bit(path: Path, part: bytes = b"") -> None:
    """Flip a bit in the middle of a file, or of a part of it."""
    content = path.read_bytes()
    at = content.index(part) + len(part) // 2 if part else len(content) // 2
    path.write_bytes(content[:at] + bytes((content[at] ^ 1,)) + content[at + 1 :])


def _picture() -> bytes:
    """A PPM image of 196 kB."""
    return b"P6 256 256 255\n" + bytes(
        value for row in range(256) for column in range(256) for value in (row, column, row ^ column)
    )


quickstart_app = single("quickstart")
_QUICKSTART_TTL_S = 30 * 86_400


@command(
    quickstart_app, "quickstart", "veen quickstart try", "veen quickstart try --stream notes --listen 127.0.0.1:4000"
)
def quickstart(
    folder: Annotated[Path, argument("DIR", "the folder to create")],
    stream: Annotated[str, option("--stream NAME", "the stream to create")] = "doors",
    listen: Annotated[str, option("--listen HOST:PORT", "where the hub listens")] = "127.0.0.1:37411",
    as_json: JsonOption = False,
) -> None:
    """Set up a hub and a writer for a first try.

    Each step is a command that you could type, and is printed. Afterwards `veen send`, `veen stream` and
    `veen evidence` work without further options: the new context names the hub, the client and the stream. The keys
    have no passphrases and the hub has no root key, so use `veen hub init` and `veen keygen` for anything that must
    last.
    """
    if folder.exists():
        raise Misuse(f"{folder} exists", "name a folder that does not exist yet")
    setup = _Setup(folder, quiet=as_json)
    hub, me, cap = folder / "hub", folder / "me", folder / "me.cap"
    setup.run("keygen", "--out", folder / "operator", "--no-passphrase")
    setup.run("keygen", "--out", me, "--no-passphrase")
    hub_id = setup.run("hub", "init", "--data-dir", hub, "--no-root").facts()["hub_id"]
    started = setup.run("hub", "start", "--data-dir", hub, "--listen", listen, "--issuer", folder / "operator")
    url = started.facts()["url"]
    try:
        setup.run("stream-key", "create", stream, "--client", me)
        grant = ("--subject", me, "--stream", stream, "--ttl", _QUICKSTART_TTL_S, "--hub", hub, "--out", cap)
        setup.run("cap", "issue", "--issuer", folder / "operator", *grant)
        name = folder.resolve().name
        setup.run("context", "add", name, "--hub", url, "--client", me, "--stream", stream, "--cap", cap, "--use")
        setup.run("verify", "--pin", hub)  # the client stores the hub's identity: later commands need no pin
    except BaseException:
        run_here(["hub", "stop", "--data-dir", str(hub)], dict(os.environ))
        raise
    hint = f'hint: try veen send --body "hello", veen stream, and at the end veen hub stop --data-dir {hub}'
    data = {"hub_id": hub_id, "url": url, "stream": stream, "context": name, "folder": str(folder)}
    Result({**data, "commands": setup.commands}, facts=list(data), remarks=(hint,)).show(as_json)


class _Setup:
    """Runs commands one after the other, and prints each."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self.commands: list[str] = []
        self._folder = folder
        self._quiet = quiet
        folder.mkdir(parents=True)

    def run(self, *words: object) -> Ran:
        arguments = [str(word) for word in words]
        typed = f"veen {shlex.join(arguments)}"
        self.commands.append(typed)
        if not self._quiet:
            output.remark(f"$ {typed}")
        ran = run_here(arguments, dict(os.environ))
        if ran.status:
            sys.stderr.write(ran.err)
            output.remark(f"hint: remove {self._folder} before you try again")
            raise typer.Exit(ran.status)
        return ran
