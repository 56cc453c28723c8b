"""`python -m veen.hub init|start`: a hub in the foreground, for containers, benchmarks and tests."""

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import uvloop

from veen.core import Limits, Profile, VeenError
from veen.core.signing import PUBLIC_KEY_BYTES
from veen.hub.config import DEFAULT_PORT, HubConfig
from veen.hub.rules import Admission
from veen.hub.service import HubService
from veen.storage import directory
from veen.storage.durable import Disk
from veen.storage.journal import JournalBroken

_FAILED, _BROKEN = 1, 70


def main(arguments: list[str]) -> int:
    """The exit status."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "init":
            papers = directory.create(
                Disk(), options.data_dir, Profile(options.epoch_sec, options.pad_block), Limits(), int(time.time())
            )
            sys.stdout.write(f"{papers.identity.hub_id.hex()}\n")
        else:
            uvloop.run(_serve(_config(options)))
    except JournalBroken as error:
        return _failed(error, "the disk cannot be trusted any more; check it, then start again", _BROKEN)
    except VeenError as error:
        return _failed(error, "python -m veen.hub --help lists what there is", _FAILED)
    return 0


def _failed(error: BaseException, hint: str, status: int) -> int:
    sys.stderr.write(f"veen: error: {error}\nveen: hint: {hint}\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m veen.hub", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    init = commands.add_parser("init", help="make a data directory")
    init.add_argument("--epoch-sec", type=int, default=Profile().epoch_sec)
    init.add_argument("--pad-block", type=int, default=Profile().pad_block)
    start = commands.add_parser("start", help="serve until SIGTERM or SIGINT")
    start.add_argument(
        "--listen",
        type=_address,
        default=("127.0.0.1", DEFAULT_PORT),
        metavar="HOST:PORT",
        help="port 0 lets the system choose",
    )
    start.add_argument("--admission", choices=[str(mode) for mode in Admission], default=str(Admission.CAPABILITY))
    start.add_argument("--open-to-the-network", action="store_true", help="mean it when --admission open is not local")
    start.add_argument(
        "--issuer", type=_key, action="append", default=[], metavar="HEX", help="whose capabilities count"
    )
    start.add_argument(
        "--witness", type=_key, action="append", default=[], metavar="HEX", help="whose checkpoint signatures count"
    )
    start.add_argument("--workers", type=int, default=None, help="verification processes; 0 is a thread")
    start.add_argument("--log-submits", action="store_true", help="one JSON line per submit on standard error")
    start.add_argument("--tls-cert", type=Path)
    start.add_argument("--tls-key", type=Path)
    for command in (init, start):
        command.add_argument("--data-dir", type=Path, required=True)
    return parser


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 0xFFFF:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != PUBLIC_KEY_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a public key of {2 * PUBLIC_KEY_BYTES} hex digits")
    return key


def _config(options: argparse.Namespace) -> HubConfig:
    host, port = options.listen
    return HubConfig(
        options.data_dir,
        host=host,
        port=port,
        admission=Admission(options.admission),
        issuers=frozenset(options.issuer),
        witnesses=frozenset(options.witness),
        # Not an option: what is on a command line, everyone on the machine can read.
        operator_token=os.environ.get("VEEN_OPERATOR_TOKEN"),
        workers=options.workers,
        open_to_the_network=options.open_to_the_network,
        log_submits=options.log_submits,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
    )


async def _serve(config: HubConfig) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await HubService(config).run_until(stopped)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
