"""Open a client directory, contact a hub, check its pin, and run the command's work with the client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from plumbing.cli.command import Misuse, misuse
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

# A mistyped address should fail at once. Once the hub has answered, retry for longer.
FIRST_CONTACT_RETRY_POLICY, RETRY_POLICY = RetryPolicy(attempts=3), RetryPolicy()
ANNOUNCE_WAIT_AFTER_S = 5.0
_ANOTHER_HUB_HINT = (
    "another hub answers at this address now; if that is intended, --pin HEX|PATH names the new hub, which is then "
    "expected at this address"
)
_RECOVERY_HINT = (
    "ask the operator what was lost; veen verify --stream NAME --accept-recovery continues, and keeps your receipts"
)
_START_OVER_HINT = (
    "once you know why, veen verify --stream NAME --start-over continues with what this hub shows now; it is also "
    "needed after a hub was restored from a backup"
)
_FIRST_USE_HINT = "--trust-on-first-use accepts the hub that answers now, and requires the same hub from then on"


@contextmanager
def open_client_dir(given: Path | None, passphrase_file: Path | None) -> Iterator[ClientDir]:
    """Open the client directory of the option, else of the context."""
    path = context_file.need_client(given)
    try:
        secret = key_files.passphrase_for_existing(passphrase_file, str(path)) if ClientDir.is_encrypted(path) else None
    except Unavailable as error:
        raise hinted(error, f"veen keygen --out {path} creates a client directory") from None
    try:
        folder = ClientDir.open(path, secret)
    except WrongPassphrase as error:
        raise hinted(error, "try again: the keystore cannot be opened without its passphrase") from None
    with folder:
        yield folder


@dataclass(frozen=True, slots=True)
class HubCall:
    """The client directory, the hub and the pin that the options of a command name."""

    hub: str | None
    client: Path | None
    passphrase_file: Path | None
    pin: str | None = None
    first_use: bool = False
    timeout_s: float | None = None  # for each response; if given, requests are not retried
    allow_caught: bool = False  # warn about a hub that contradicted itself instead of failing

    def url(self) -> str:
        with misuse("give --hub URL"):
            return values.url(context_file.need_hub(self.hub))

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Open the client directory, contact the hub, and run the work."""
        url = self.url()
        with open_client_dir(self.client, self.passphrase_file) as folder:
            return self.run_with(folder, url, work)

    def run_with(self, folder: ClientDir, url: str, work: Callable[[Client], Awaitable[T]]) -> T:
        async def run() -> T:
            async with self.connected(folder, url) as client:
                return await work(client)

        return asyncio.run(run())

    @asynccontextmanager
    async def connected(self, folder: ClientDir, url: str) -> AsyncIterator[Client]:
        """Contact the hub, and yield the client."""
        pin = self._pin(folder, url)
        try:
            client = Client(
                url,
                folder,
                pin=pin,
                retry_policy=self._retry_policy(FIRST_CONTACT_RETRY_POLICY),
                allow_caught=self.allow_caught,
            )
            async with AsyncExitStack() as stack:
                try:
                    with announce_wait(url):
                        await stack.enter_async_context(client)
                except Unavailable as error:
                    hint = f"check the address, and that the hub runs: veen hub status --hub {url}"
                    raise hinted(self._advised(error), hint) from None
                client.session.link.retry_policy = self._retry_policy(RETRY_POLICY)
                if pin is FIRST_USE:
                    hub_id = client.hub_id.hex()
                    output.remark(f"accepted hub {hub_id} on first use; only this hub is accepted from now on")
                warn_of_contradictions(client.session.contradictions())
                yield client
        except Contradiction as error:
            if error.lie is Lie.RECOVERY:
                hinted(error, _RECOVERY_HINT)
            elif error.proven or error.lie not in (Lie.WRONG_KEY, Lie.SIGNATURE):
                hinted(error, _START_OVER_HINT)
            elif error.lie is Lie.WRONG_KEY and not error.statements and self.pin is None:
                hinted(error, _ANOTHER_HUB_HINT)
            raise

    def _retry_policy(self, usual: RetryPolicy) -> RetryPolicy:
        if self.timeout_s is None:
            return usual
        return RetryPolicy(attempts=1, connect_s=self.timeout_s, answer_s=self.timeout_s)

    def _advised(self, error: Unavailable) -> Unavailable:
        if self.timeout_s is not None and isinstance(error, TimedOut):
            hinted(error, "if the hub or the network is slow, give a longer --timeout")
        return error

    def _pin(self, folder: ClientDir, url: str) -> Pin | None:
        """Return the pin for this contact, or None if the client directory already has a record of the hub."""
        if self.pin is not None and self.first_use:
            raise Misuse("--pin and --trust-on-first-use contradict each other", "give one of them")
        if self.pin is not None:
            return pinning.for_hub(self.pin, url)
        if folder.state.hub_of(url) is not None:
            return None
        if self.first_use:
            return FIRST_USE
        pin = context_file.pin_of(url)
        if pin is not None:
            return pinning.for_hub(pin, url)
        unknown = Misuse(
            f"this is the first contact with the hub at {url}, and no --pin is given",
            f"give --pin HEX|PATH: {pinning.PIN_SOURCES}",
        )
        unknown.add_note(_FIRST_USE_HINT)
        raise unknown


@contextmanager
def announce_wait(url: str) -> Iterator[None]:
    """Write a remark if the hub takes longer than `ANNOUNCE_WAIT_AFTER_S`. Needs a running event loop."""
    remark = asyncio.get_running_loop().call_later(ANNOUNCE_WAIT_AFTER_S, output.remark, f"waiting for {url}")
    try:
        yield
    finally:
        remark.cancel()


def known_hub(folder: ClientDir, url: str) -> HubRecord:
    """Return the stored record of a hub, without contacting it."""
    hub_id = folder.state.hub_of(url)
    kept = folder.state.hub(hub_id) if hub_id else None
    if kept is None:
        raise hinted(
            Unavailable(f"the client directory has no record of the hub at {url}"),
            "run a command that contacts it first, such as veen checkpoint",
        )
    assert hub_id is not None
    warn_of_contradictions(folder.state.caught(hub_id))
    return HubRecord.decode(kept)


def warn_of_contradictions(caught: Sequence[Caught]) -> None:
    for one in caught:
        output.remark(f"warning: {one}")
