"""Write every golden state: `python -m vectors.overlays.generate`. The same code gives the same bytes."""

from collections.abc import Callable
from pathlib import Path

from vectors.form import Doc, render
from vectors.overlays import administration, bridging, directory, histories, identity, operations, record
from vectors.overlays.logs import folded
from veen.overlays.crdt import G_COUNTER, LWW, OR_SET
from veen.overlays.kv import KV
from veen.overlays.queue import QUEUE
from veen.overlays.rpc import RPC
from veen.overlays.wallet import Wallets

FOLDER = Path(__file__).parent

GENERATED: dict[str, Callable[[], Doc]] = {
    "crdt-gcnt.json": lambda: folded(G_COUNTER, histories.COUNTER),
    "crdt-lww.json": lambda: folded(LWW, histories.REGISTERS),
    "crdt-orset.json": lambda: folded(OR_SET, histories.SET),
    **identity.GENERATED,
    "kv.json": lambda: folded(KV, histories.KV_LOG),
    "queue.json": lambda: folded(QUEUE, histories.QUEUE_LOG),
    "rpc.json": lambda: folded(RPC, histories.RPC_LOG),
    "wallet.json": lambda: folded(Wallets(only=histories.MINE), histories.WALLET_LOG),
    **administration.GENERATED,
    **bridging.GENERATED,
    **directory.GENERATED,
    **operations.GENERATED,
    **record.GENERATED,
}


def main() -> None:
    for name, make in GENERATED.items():
        (FOLDER / name).write_bytes(render(make()))


if __name__ == "__main__":
    main()
