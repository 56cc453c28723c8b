"""Attachments saved to a folder, under names that their writer cannot use against anyone."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbing.cli.command import Misuse, command, single
from veen.cli.kit import output, output_files, sanitize
from veen.cli.kit.client_options import Epoch, HubPin, PassphraseFile, TrustOnFirstUse
from veen.cli.kit.common_options import ClientDir, HubUrl, JsonOption, Stream
from veen.cli.kit.sanitize import size
from veen.client.client import Client
from veen.client.draft import DEFAULT_SCHEMA
from veen.client.durable import check_local
from veen.client.entry import Entry
from veen.core import Unverified

if TYPE_CHECKING:
    from veen.client.client import Client


# What every file system takes and no shell minds; never a dot or a dash first, since the number stands there.
_STRANGE = re.compile(r"[^A-Za-z0-9._+-]+")
_LONGEST = 120


def name_for(entry: Entry, index: int) -> str:
    """`12.1-photo.jpg`: the place, which attachment, and what its writer called it."""
    called = _STRANGE.sub("_", entry.attachments[index].name)[-_LONGEST:].strip("._")
    epoch = f"{entry.epoch}." if entry.epoch else ""
    return f"{epoch}{entry.stream_seq}.{index + 1}-{called or 'attachment'}"


class Saver:
    """Saves what entries carry. A file that is there already must be the same."""

    def __init__(self, folder: Path) -> None:
        check_local(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    async def save(self, client: Client, entry: Entry) -> list[Path]:
        """Every attachment of an entry; each is what was sealed, or nothing is written."""
        return [await self._one(client, entry, index) for index in range(len(entry.attachments))]

    async def _one(self, client: Client, entry: Entry, index: int) -> Path:
        path = self._folder / name_for(entry, index)
        content = await client.attachment(entry, index)
        if path.is_symlink() or path.exists():
            if path.is_symlink() or path.read_bytes() != content:
                raise Unverified(str(path), f"it is there already, and is not the {size(len(content))} of the entry")
            return path
        output_files.write_new(path, content, output_files.SECRET_MODE)
        return path


_SEQ_WIDTH = 6
AGAIN_S = 60.0


class Printer:
    """Shows entries, and keeps count of what could not be opened."""

    def __init__(self, as_json: bool, with_proof: bool) -> None:
        self.count = 0
        self.sealed = False  # nobody here can open them, which has been said already
        self._faults = 0
        self._with_proof = with_proof
        self._as_json = as_json
        self._console = output.console() if sys.stdout.isatty() and not as_json else None

    def show(self, entry: Entry, saved: list[Path]) -> None:
        self.count += 1
        self._faults += entry.fault is not None and not self.sealed
        if self._as_json:
            output.line(self._data(entry, saved))
        elif self._console is None:
            sys.stdout.write("\t".join(self._fields(entry, saved)) + "\n")
        else:
            self._print(entry, saved)
        sys.stdout.flush()

    def end(self, stream: str) -> None:
        """A last word, where one is needed."""
        if self.count == 0 and not self._as_json:
            output.remark(f"nothing there: stream {stream!r} has no such entries")
        if self._faults:
            output.remark(
                f"{self._faults} of {self.count} entries hold and could not be opened; that is their writers'"
            )

    def _says(self, entry: Entry) -> str:
        if entry.body is None:
            return "(sealed)" if self.sealed else f"(cannot be opened: {sanitize.printable(entry.fault or '')})"
        return sanitize.line_of(entry.body) if self._console is None else sanitize.preview(entry.body)

    def _fields(self, entry: Entry, saved: list[Path]) -> Iterator[str]:
        yield str(entry.stream_seq)
        yield str(entry.hub_ts)
        yield entry.client_id.hex()
        yield self._says(entry)
        yield ",".join(map(str, saved) if saved else (sanitize.printable(part.name) for part in entry.attachments))

    def _print(self, entry: Entry, saved: list[Path]) -> None:
        from rich.text import Text

        assert self._console is not None
        tone = "" if entry.body is not None else "dim" if self.sealed else "yellow"
        line = Text.assemble(
            (f"{entry.stream_seq:>{_SEQ_WIDTH}}", "cyan"),
            (f"  {sanitize.when(entry.hub_ts)}  {entry.client_id.hex()[:8]}  ", "dim"),
            (self._says(entry), tone),
        )
        lines = [line]
        if entry.schema not in (None, DEFAULT_SCHEMA):
            line.append(f"  schema {sanitize.short_hex(entry.schema or b'')}", "dim")
        for at, part in enumerate(entry.attachments):
            where = f"  saved as {saved[at]}" if saved else ""
            text = f"{'':>{_SEQ_WIDTH}}  + {sanitize.printable(part.name)}, {sanitize.size(part.size)}{where}"
            lines.append(Text(text, "green" if saved else ""))
        if entry.proof is not None:
            shape = f"path {len(entry.proof.path)}, peaks {len(entry.proof.peaks_after)}"
            root = sanitize.short_hex(entry.receipt.mmr_root)
            lines.append(Text(f"{'':>{_SEQ_WIDTH}}  proved up to root {root} ({shape})", "dim"))
        for one in lines:
            self._console.print(one, soft_wrap=True)

    def _data(self, entry: Entry, saved: list[Path]) -> dict[str, Any]:
        data: dict[str, Any] = {
            "epoch": entry.epoch,
            "stream_seq": entry.stream_seq,
            "hub_ts": entry.hub_ts,
            "msg_id": entry.msg_id.hex(),
            "client_id": entry.client_id.hex(),
            "client_seq": entry.msg.client_seq,
            "schema": entry.schema.hex() if entry.schema else None,
            "text": sanitize.text_of(entry.body) if entry.body is not None else None,
            "body": entry.body.hex() if entry.body is not None else None,
            "parent_id": entry.header.parent_id.hex() if entry.header and entry.header.parent_id else None,
            "attachments": [
                {"name": part.name, "size": part.size, "coid": part.coid.hex()} for part in entry.attachments
            ],
            "fault": entry.fault,
        }
        for at, path in enumerate(saved):
            data["attachments"][at]["saved"] = str(path)
        if self._with_proof:
            data["receipt"] = entry.receipt.encode().hex()
            data["proof"] = entry.proof.encode().hex() if entry.proof else None
        return data


class Patient:
    """Says that a hub is waited for: at once, and again where that lasts."""

    def __init__(self) -> None:
        self._said_at = -AGAIN_S

    def __call__(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self._said_at + AGAIN_S:
            self._said_at = now
            output.remark(f"{error}; it is tried again")


def counted(follow: bool) -> AbstractContextManager[Callable[[int], None]]:
    """A count beside the entries, where they go into a file: on one screen the two would be in each other's way."""
    if follow or sys.stdout.isatty():
        return nullcontext(lambda done: None)
    return output.tally("reading", "entries")


app = single("stream")


@command(
    app,
    "stream",
    "veen stream --stream doors",
    "veen stream --stream doors --follow --json",
    "veen stream --stream doors --from 100 --to 200 --with-proof --save-attachments photos",
)
def stream(
    stream: Stream = None,
    first: Annotated[int, typer.Option("--from", metavar="N", min=1, help="the first entry to show")] = 1,
    last: Annotated[
        int | None, typer.Option("--to", metavar="N", min=1, help="the last entry to show", show_default="the end")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="go on as entries come, until ctrl-c")] = False,
    with_proof: Annotated[bool, typer.Option("--with-proof", help="with the proof that each is in the log")] = False,
    save: Annotated[
        Path | None, typer.Option("--save-attachments", metavar="DIR", help="save what they carry, under safe names")
    ] = None,
    epoch: Epoch = None,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: TrustOnFirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Read a stream, each entry verified before it is opened.

    Without the stream's reader key the entries are still verified, and stay sealed. In a pipe each entry is a line:
    number, time, client_id, what it says, files; with --json an object on a line of its own, and nothing is written out
    or shortened.
    """
    from veen.cli.kit import context_file, open_session
    from veen.core import naming

    name = context_file.need_stream(stream)
    if follow and last is not None:
        raise Misuse("--follow and --to contradict each other", "to follow is to read without an end")
    if last is not None and last < first:
        raise Misuse(f"--to {last} is before --from {first}", "give the lower number first")
    call = open_session.HubCall(hub, client, passphrase_file, pin, first_use)
    url = call.url()
    printer = Printer(as_json, with_proof)
    with open_session.open_client_dir(client, passphrase_file) as folder:
        if folder.stream_keys.secret(naming.stream_id(name)) is None:
            printer.sealed = True
            if save is not None:
                raise Misuse(f"there is no reader key of stream {name!r} here", "veen stream-key import takes one in")
            output.remark(f"there is no reader key of stream {name!r} here: entries are verified and stay sealed")
        saver = Saver(save) if save is not None else None

        async def show(met: "Client") -> None:
            if follow:
                met.session.link.on_pause = Patient()
            entries_of = met.read(name, first, last, follow=follow, with_proof=with_proof, epoch=epoch)
            with counted(follow) as report:
                async for entry in entries_of:
                    printer.show(entry, await saver.save(met, entry) if saver else [])
                    report(printer.count)

        call.run_with(folder, url, show)
    printer.end(name)
