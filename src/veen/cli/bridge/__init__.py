"""`veen bridge`: bundles across an air gap, online mirrors, and comparison of checkpoints over VEIL."""

from veen.cli.bridge import bridge_mirror, bridge_qr, bridge_reconcile, bridge_veil, bundles
from veen.cli.bridge.bridge_options import app

app.add_typer(bridge_veil.app)

ORDER = ("export", "verify", "import", "watch", "mirror", "compare", "reconcile", "print", "scan")
app.registered_commands.sort(key=lambda command: ORDER.index(command.name or ""))

__all__ = ["app", "bridge_mirror", "bridge_qr", "bridge_reconcile", "bridge_veil", "bundles"]
