"""Who calls which hub: a client directory opened, the hub met and believed for a reason."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from plumbing.cli.command import Misuse
from veen.cli.kit import context_file, key_files, output, pinning, values
from veen.cli.kit.exit_status import hinted
from veen.client import ClientDir, WrongPassphrase
from veen.client.client import Client
from veen.client.contradiction import Caught, Contradiction, Lie
from veen.client.exchange import TimedOut
from veen.client.transport import RetryPolicy
from veen.client.trust import FIRST_USE, HubRecord, Pin
from veen.core import Unavailable

T = TypeVar("T")

# Who mistyped an address should hear so at once; a hub that answered a moment ago is worth waiting for.
FIRST_CONTACT_PATIENCE, PATIENCE = RetryPolicy(attempts=3), RetryPolicy()
ANNOUNCE_WAIT_AFTER_S = 5.0  # after which it is said whom the command waits for
_ANOTHER_HUB = (
    "another hub answers at this address now; if you know that it should, --pin HEX|PATH names that one, and it is the "
    "one believed there from then on"
)
_START_OVER = (
    "once you know why, veen verify --stream NAME --start-over goes on with what this hub shows now; a hub that was "
    "restored from a backup needs it too"
)
_FIRST_USE = "--trust-on-first-use believes whichever hub answers, this once, and holds it to that from then on"


@contextmanager
def open_client_dir(given: Path | None, passphrase_file: Path | None) -> Iterator[ClientDir]:
    """The client directory of an option, else of the context."""
    path = context_file.need_client(given)
    try:
        secret = key_files.passphrase_for_existing(passphrase_file, str(path)) if ClientDir.is_encrypted(path) else None
    except Unavailable as error:
        raise hinted(error, f"veen keygen --out {path} makes one, where there is none") from None
    try:
        folder = ClientDir.open(path, secret)
    except WrongPassphrase as error:
        raise hinted(error, "try again: without it nobody opens this keystore") from None
    with folder:
        yield folder


@dataclass(frozen=True, slots=True)
class HubCall:
    """What the options of a command say about who talks to which hub."""

    hub: str | None
    client: Path | None
    passphrase_file: Path | None
    pin: str | None = None
    first_use: bool = False
    timeout_s: float | None = None  # for each answer, which is asked for once then
    allow_caught: bool = False  # a hub that contradicted itself is warned about, and not refused

    def url(self) -> str:
        try:
            return values.url(context_file.need_hub(self.hub))
        except ValueError as error:
            raise Misuse(str(error), "give --hub URL") from None

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Open the client, meet the hub, do the work."""
        url = self.url()
        with open_client_dir(self.client, self.passphrase_file) as folder:
            return self.run_with(folder, url, work)

    def run_with(self, folder: ClientDir, url: str, work: Callable[[Client], Awaitable[T]]) -> T:
        pin = self._pin(folder, url)
        try:
            client = Client(
                url,
                folder,
                pin=pin,
                retry_policy=self._retry_policy(FIRST_CONTACT_PATIENCE),
                allow_caught=self.allow_caught,
            )
            return asyncio.run(self._work(client, pin, work))
        except Contradiction as error:
            if error.proven or error.lie not in (Lie.WRONG_KEY, Lie.SIGNATURE):
                hinted(error, _START_OVER)
            elif error.lie is Lie.WRONG_KEY and not error.statements and self.pin is None:
                hinted(error, _ANOTHER_HUB)
            raise

    def _retry_policy(self, usual: RetryPolicy) -> RetryPolicy:
        if self.timeout_s is None:
            return usual
        return RetryPolicy(attempts=1, connect_s=self.timeout_s, answer_s=self.timeout_s)

    def _advised(self, error: Unavailable) -> Unavailable:
        if self.timeout_s is not None and isinstance(error, TimedOut):
            hinted(error, "a slow hub or network needs a longer --timeout")
        return error

    async def _work(self, client: Client, pin: Pin | None, work: Callable[[Client], Awaitable[T]]) -> T:
        async with AsyncExitStack() as stack:
            try:
                with announce_wait(client.url):
                    await stack.enter_async_context(client)
            except Unavailable as error:
                hint = f"check the address, and that the hub runs: veen hub status --hub {client.url}"
                raise hinted(self._advised(error), hint) from None
            client.session.link.retry_policy = self._retry_policy(PATIENCE)
            if pin is FIRST_USE:
                output.remark(f"trusting hub {client.hub_id.hex()} from now on: it is the one that answered")
            warn_of_contradictions(client.session.contradictions())
            return await work(client)

    def _pin(self, folder: ClientDir, url: str) -> Pin | None:
        """What to hold the hub to; None where that is what is known of it."""
        if self.pin is not None and self.first_use:
            raise Misuse("--pin and --trust-on-first-use contradict each other", "give one of them")
        if self.pin is not None:
            return pinning.for_hub(self.pin, url)
        if folder.state.hub_of(url) is not None:
            return None  # first use is over, whoever answers now
        if self.first_use:
            return FIRST_USE
        unknown = Misuse(
            f"nothing is known yet of the hub at {url}", f"--pin HEX|PATH names the one you mean: {pinning.PIN_SOURCES}"
        )
        unknown.add_note(_FIRST_USE)
        raise unknown


@contextmanager
def announce_wait(url: str) -> Iterator[None]:
    """Say so where an answer is long in coming. Needs a running loop."""
    remark = asyncio.get_running_loop().call_later(ANNOUNCE_WAIT_AFTER_S, output.remark, f"waiting for {url}")
    try:
        yield
    finally:
        remark.cancel()


def known_hub(folder: ClientDir, url: str) -> HubRecord:
    """The record of a hub that this client has met, without meeting it again."""
    hub_id = folder.state.hub_of(url)
    kept = folder.state.hub(hub_id) if hub_id else None
    if kept is None:
        raise hinted(
            Unavailable(f"nothing is known here of the hub at {url}"),
            "any command that asks it, like veen checkpoint, makes it known",
        )
    assert hub_id is not None
    warn_of_contradictions(folder.state.caught(hub_id))
    return HubRecord.decode(kept)


def warn_of_contradictions(caught: Sequence[Caught]) -> None:
    """A hub that contradicted itself is not dealt with in silence."""
    for one in caught:
        output.remark(f"warning: {one}")
