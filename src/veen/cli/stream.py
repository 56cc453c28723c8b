"""`veen stream`: read entries, show them and save their attachments under safe names."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

from plumbing.cli.command import Misuse, option, options_command, single
from veen.cli.kit import context_file, message_content, open_session, output, output_files, sanitize, values
from veen.cli.kit.common_options import Epoch, HubOptions, Stream
from veen.cli.kit.open_session import HubCall
from veen.cli.kit.result import Moment, Result, fields_of, jsonable
from veen.client.client import Client
from veen.client.local_files import check_local
from veen.client.reader import Entry
from veen.client.sender import DEFAULT_SCHEMA
from veen.client.stream_epochs import is_over
from veen.core import Unverified, naming
from veen.core.retention import Tombstone

# Only characters that are safe in every file system and shell. A name never starts with a dot or dash: the number does.
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_MAX_NAME_CHARS = 120


def name_for(entry: Entry, index: int) -> str:
    """A safe file name such as `12.1-photo.jpg`: place, number of the attachment, and the writer's name for it."""
    name = _UNSAFE.sub("_", entry.attachments[index].name)[-_MAX_NAME_CHARS:].strip("._")
    epoch = f"{entry.epoch}." if entry.epoch else ""
    return f"{epoch}{entry.stream_seq}.{index + 1}-{name or 'attachment'}"


class AttachmentSaver:
    """Saves attachments into a folder. An existing file must have the same content."""

    def __init__(self, folder: Path) -> None:
        check_local(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    async def save(self, client: Client, entry: Entry) -> list[Path]:
        """Save every attachment of an entry, each verified before it is written."""
        return [await self._one(client, entry, index) for index in range(len(entry.attachments))]

    async def _one(self, client: Client, entry: Entry, index: int) -> Path:
        path = self._folder / name_for(entry, index)
        content = await client.attachment(entry, index)
        if path.is_symlink() or path.exists():
            if path.is_symlink() or path.read_bytes() != content:
                size = sanitize.size(len(content))
                raise Unverified(str(path), f"the file exists and differs from the attachment of {size}")
            return path
        output_files.write_new(path, content, output_files.SECRET_MODE)
        return path


_SEQ_WIDTH = 6
REMARK_INTERVAL_S = 60.0


class EntryPrinter:
    """Prints entries and counts those that could not be opened."""

    def __init__(self, as_json: bool, with_proof: bool) -> None:
        self.count = 0
        self.sealed = False  # the client has no reader key; the user has been informed
        self._faults = 0
        self._with_proof = with_proof
        self._as_json = as_json
        self._console = output.console() if sys.stdout.isatty() and not as_json else None

    def show(self, entry: Entry, saved: list[Path]) -> None:
        self.count += 1
        self._faults += entry.fault is not None and not self.sealed
        if self._as_json:
            output.line(jsonable(self._data(entry, saved)))
        elif self._console is None:
            sys.stdout.write("\t".join(self._fields(entry, saved)) + "\n")
        else:
            self._print(entry, saved)
        sys.stdout.flush()

    def end(self, stream: str) -> None:
        """Print remarks on an empty result and on entries that could not be opened."""
        if self.count == 0 and not self._as_json:
            output.remark(f"stream {stream!r} has no such entries")
        if self._faults:
            output.remark(
                f"{self._faults} of {self.count} entries are verified but could not be opened; the fault "
                "is in the messages, not in the log"
            )

    def _content(self, entry: Entry) -> str:
        if entry.body is None:
            return "(sealed)" if self.sealed else f"(cannot be opened: {sanitize.printable(entry.fault or '')})"
        show = message_content.line_of if self._console is None else message_content.preview
        return show(entry.schema or DEFAULT_SCHEMA, entry.body)

    def _fields(self, entry: Entry, saved: list[Path]) -> Iterator[str]:
        yield _numbered(entry)
        yield str(entry.hub_ts)
        yield entry.client_id.hex()
        yield self._content(entry)
        yield ",".join(map(str, saved) if saved else (sanitize.printable(part.name) for part in entry.attachments))

    def _print(self, entry: Entry, saved: list[Path]) -> None:
        from rich.text import Text

        assert self._console is not None
        tone = "" if entry.body is not None else "dim" if self.sealed else "yellow"
        line = Text.assemble(
            (f"{_numbered(entry):>{_SEQ_WIDTH}}", "cyan"),
            (f"  {sanitize.when(entry.hub_ts)}  {entry.client_id.hex()[:8]}  ", "dim"),
            (self._content(entry), tone),
        )
        lines = [line]
        schema = entry.schema or DEFAULT_SCHEMA
        if schema != DEFAULT_SCHEMA and message_content.event_of(schema, entry.body or b"") is None:
            line.append(f"  schema {sanitize.short_hex(schema)}", "dim")
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
            **fields_of(entry, "epoch", "stream_seq", "hub_ts", "msg_id", "client_id", "schema", "body", "fault"),
            "client_seq": entry.msg.client_seq,
            "text": sanitize.text_of(entry.body) if entry.body is not None else None,
            "event": message_content.event_data(entry.schema or DEFAULT_SCHEMA, entry.body) if entry.body else None,
            "parent_id": entry.header.parent_id if entry.header else None,
            "attachments": [fields_of(part, "name", "size", "coid") for part in entry.attachments],
        }
        for at, path in enumerate(saved):
            data["attachments"][at]["saved"] = str(path)
        if self._with_proof:
            data["receipt"] = entry.receipt.encode()
            data["proof"] = entry.proof.encode() if entry.proof else None
        return data


def _numbered(entry: Entry) -> str:
    """The number of an entry, after its epoch if the hub has epochs: numbers start over in each epoch."""
    return f"{entry.epoch}:{entry.stream_seq}" if entry.epoch else str(entry.stream_seq)


class RetryRemark:
    """Remarks that the client is retrying: at once, then at most once per interval."""

    def __init__(self) -> None:
        self._last = -REMARK_INTERVAL_S

    def __call__(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self._last + REMARK_INTERVAL_S:
            self._last = now
            output.remark(f"{error}; retrying")


def entry_counter(follow: bool) -> AbstractContextManager[Callable[[int], None]]:
    """A counter on standard error while entries go into a file. On a terminal it would disturb the entries."""
    if follow or sys.stdout.isatty():
        return nullcontext(lambda done: None)
    return output.tally("reading", "entries")


def remark_pruned(tombstone: Tombstone) -> None:
    """Say which entries are left out because the hub pruned them."""
    segment = tombstone.segment
    when = sanitize.when(segment.pruned_at or 0)
    output.remark(f"entries {segment.start_seq} to {segment.end_seq} were pruned on {when}; the hub signed for it")


app = single("stream")


@options_command(
    HubOptions,
    app,
    "stream",
    "veen stream --stream doors",
    "veen stream --stream doors --follow --json",
    "veen stream --stream doors --from 100 --to 200 --with-proof --save-attachments photos",
    "veen stream --stream doors --since 2030-01-31T12:00:00Z --until 2030-02-01",
    "veen stream --stream doors --epochs",
)
def stream(
    options: HubOptions,
    stream: Stream = None,
    first: Annotated[
        values.EntryPlace | None,
        option("--from [EPOCH:]N", "the first entry to show", default="the first", parser=values.entry_place),
    ] = None,
    last: Annotated[
        values.EntryPlace | None,
        option("--to [EPOCH:]N", "the last entry to show", default="the end", parser=values.entry_place),
    ] = None,
    since: Annotated[
        int | None, option("--since TIME", "only entries of this hub time or later", parser=values.moment)
    ] = None,
    until: Annotated[
        int | None, option("--until TIME", "only entries before this hub time", parser=values.moment)
    ] = None,
    follow: Annotated[bool, option("--follow", "wait for new entries until ctrl-c")] = False,
    with_proof: Annotated[bool, option("--with-proof", "with the inclusion proof of each entry")] = False,
    save: Annotated[Path | None, option("--save-attachments DIR", "save attachments there, under safe names")] = None,
    epoch: Epoch = None,
    epochs: Annotated[bool, option("--epochs", "list the epochs of the stream instead of its entries")] = False,
) -> None:
    """Read a stream and verify every entry.

    Entries are verified before they are opened. Without the reader key of the stream they are still verified, and stay
    sealed. In a pipe each entry is one line: number, time, client_id, content, files. With --json each entry is one
    object on its own line, with nothing escaped or shortened.

    On a hub with epochs, a stream is read epoch by epoch, and entries are numbered EPOCH:N. A number without its epoch
    is one of the newest epoch with entries. The hub finds the places of --since and --until, and the receipts around
    them prove them. The list of --epochs has the newest checkpoint that the hub has stored of each epoch, verified;
    once an epoch has ended, it is of all entries.
    """
    name = context_file.need_stream(stream)
    _check_range(first, last, since, until, epoch, follow=follow)
    call = options.call()
    if epochs:
        _list_epochs(call, name, options.as_json)
        return
    url = call.url()
    printer = EntryPrinter(options.as_json, with_proof)
    with open_session.open_client_dir(options.client, options.passphrase_file) as folder:
        if folder.stream_keys.secret(naming.stream_id(name)) is None:
            printer.sealed = True
            if save is not None:
                raise Misuse(f"this client has no reader key of stream {name!r}", "veen stream-key import imports one")
            output.remark(f"this client has no reader key of stream {name!r}: entries are verified but stay sealed")
        saver = AttachmentSaver(save) if save is not None else None

        async def show(reader: Client) -> None:
            if follow:
                reader.session.link.on_pause = RetryRemark()
            entries = reader.read(
                name,
                first.seq if first else 1,
                last.seq if last else None,
                follow=follow,
                with_proof=with_proof,
                epoch=epoch,
                first_epoch=first.epoch if first else None,
                last_epoch=last.epoch if last else None,
                since=since,
                until=until,
                on_pruned=remark_pruned,
            )
            with entry_counter(follow) as report:
                async for entry in entries:
                    printer.show(entry, await saver.save(reader, entry) if saver else [])
                    report(printer.count)

        call.run_with(folder, url, show)
    printer.end(name)


def _check_range(
    first: values.EntryPlace | None,
    last: values.EntryPlace | None,
    since: int | None,
    until: int | None,
    epoch: int | None,
    *,
    follow: bool,
) -> None:
    """Raise `Misuse` for options that contradict each other."""
    if follow and (last is not None or until is not None):
        raise Misuse("--follow has no end, so --to and --until contradict it", "leave out one of them")
    if first and last and first.epoch == last.epoch and last.seq < first.seq:
        raise Misuse(f"--to {last.seq} is before --from {first.seq}", "give the lower number first")
    if since is not None and until is not None and until <= since:
        raise Misuse("--until is not after --since", "give the earlier time to --since")
    if epoch is not None and any(one and one.epoch not in (None, epoch) for one in (first, last)):
        raise Misuse("--from and --to name another epoch than --epoch", "leave out --epoch")


def _list_epochs(call: HubCall, stream: str, as_json: bool) -> None:
    async def fetch(client: Client) -> list[dict[str, Any]]:
        profile = client.session.trust.profile
        return [
            {
                "epoch": row.epoch,
                "begins": Moment.of(row.epoch * profile.epoch_sec if profile.epoch_sec else None),
                "ends": Moment.of(profile.epoch_end(row.epoch)),
                "entries": row.entries,
                "checkpoint": row.checkpoint.upto_seq if row.checkpoint else None,
                "ended": is_over(client.session, row.epoch),
                "label": row.label,
                "mmr_root": row.checkpoint.mmr_root if row.checkpoint else None,
            }
            for row in await client.epochs(stream)
        ]

    rows = call.run(fetch)
    columns = ("epoch", "begins", "ends", "entries", "checkpoint", "ended", "label")
    Result({"stream": stream, "epochs": rows}, rows="epochs", columns=columns).show(as_json)
