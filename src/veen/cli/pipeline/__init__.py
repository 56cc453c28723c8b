"""`veen pipeline`: verified tables from logs."""

from veen.cli.pipeline import table_check, table_run
from veen.cli.pipeline.pipeline_options import ORDER, app

__all__ = ["app", "table_check", "table_run"]

app.registered_commands.sort(key=lambda command: ORDER.index(command.name or ""))
