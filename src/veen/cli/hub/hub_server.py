"""A hub that serves in this process."""

import asyncio
import gc
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import uvloop

from plumbing import service_process
from plumbing.cli.command import Misuse
from veen.cli.hub import hub_process
from veen.cli.hub.hub_process import HubProcess
from veen.cli.kit import values
from veen.cli.kit.exit_status import hinted
from veen.core import Malformed, Unavailable, Unverified, VeenError
from veen.hub.config import HubConfig, fit_connections, raise_file_limit
from veen.hub.cosigner import RolledBack
from veen.hub.hub_time import ClockGap
from veen.hub.service import HubService
from veen.storage.journal import JournalIncomplete
from veen.storage.metadata import NewerFormat, has_no_keys
from veen.storage.paths import Folders

# Entries that wait for the log are tens of thousands of objects without cycles. Collecting rarely saves the time of
# traversing them.
_GC_THRESHOLDS = (20_000, 20, 50)


def serve(config: HubConfig, ready: Callable[[str], None], again: Callable[[], HubConfig]) -> None:
    """Serve until SIGTERM or SIGINT. Calls `ready` with the URL once the port is open.

    At SIGHUP `again` reads the settings again. If it raises, the hub goes on with those that it has.
    """
    files = raise_file_limit()
    wanted, config = config, fit_connections(config, files)
    try:
        service = HubService(config)
    except ClockGap as error:
        raise hinted(
            error,
            "correct the clock of this machine if it is wrong: veen hub clock show --data-dir DIR compares both",
            f"if the clock is right, veen hub clock accept --data-dir {config.data_dir} allows the next start",
        ) from None
    except RolledBack as error:
        raise hinted(
            error,
            "put the newest copy of the data directory back, if there is one",
            f"veen hub recover --data-dir {config.data_dir} continues without the lost entries, with a new key",
        ) from None
    except NewerFormat:
        raise
    except Unavailable as error:
        raise hinted(error, *_start_hints(config)) from None
    except (Malformed, Unverified) as error:
        kind = Malformed if isinstance(error, Malformed) else Unverified
        raise hinted(kind(str(config.data_dir), str(error)), *_damage_hints(error, config.data_dir)) from None
    if config is not wanted:
        fits = config.http.max_connections
        service.log.event("warn", "few_open_files", allowed=files, connections=fits, wanted=wanted.http.max_connections)
    uvloop.run(_serve(service, config, ready, again))


async def _serve(
    service: HubService, config: HubConfig, ready: Callable[[str], None], again: Callable[[], HubConfig]
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    service_process.stop_on_signals(stopped.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the settings were just read
    with ExitStack() as stack:

        def listening(port: int) -> None:
            url = values.origin("https" if config.tls_cert else "http", config.host, port)
            stack.enter_context(hub_process.recorded(HubProcess.here(url, config.data_dir, config.tls_cert)))
            loop.add_signal_handler(signal.SIGHUP, _reload, service, again)
            ready(url)
            service_process.ready(f"serving {url}")
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)

        await service.run_until(stopped, listening)


def _reload(service: HubService, again: Callable[[], HubConfig]) -> None:
    """Follow the settings file and the certificate. A file that cannot be used changes nothing."""
    try:
        found = again()
        service.reload(fit_connections(found, raise_file_limit()))
    except (VeenError, Misuse, OSError) as error:
        service.log.event("error", "reload_failed", error=str(error))


def _damage_hints(error: Malformed | Unverified, data_dir: Path) -> list[str]:
    hints = [f"veen fsck {data_dir} shows the damage and whether it is repairable"]
    if isinstance(error, JournalIncomplete):
        hints.append("put the missing files of the journal back, from the disk or a copy made after the hub ended")
        hints.append(f"veen hub recover --data-dir {data_dir} continues without them, with a new key")
    return hints


def _start_hints(config: HubConfig) -> list[str]:
    data_dir = config.data_dir
    if hub_process.is_locked(data_dir):
        return [f"veen hub status --data-dir {data_dir} shows the hub; veen hub stop --data-dir {data_dir} stops it"]
    folders = Folders(data_dir)
    if not folders.identity.exists():
        return [f"veen hub init --data-dir {data_dir} creates a new one"]
    if has_no_keys(folders):
        return ["restore the keys from a backup; without them the log can be read, but no hub can run"]
    if config.witness_addresses:
        return ["start the witnesses, or start the hub once with --witness-quorum 0 if no older copy was put back"]
    return [f"veen fsck {data_dir} shows the damage"]
