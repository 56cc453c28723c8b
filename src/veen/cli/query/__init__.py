"""`veen query`: ask about recorded events, with evidence."""

from veen.cli.query import asking, checking, people, serving
from veen.cli.query.group import app

__all__ = ["app", "asking", "checking", "people", "serving"]
