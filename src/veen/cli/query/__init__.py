"""`veen query`: query recorded events, with evidence."""

from veen.cli.query import serve, submit_query, token, verify_query
from veen.cli.query.query_options import app

ORDER = ("serve", "token", "submit", "status", "result", "verify", "replay")
app.registered_commands.sort(key=lambda command: ORDER.index(command.name or ""))

__all__ = ["app", "serve", "submit_query", "token", "verify_query"]
