"""Read, verify and audit logs of any size on Spark. Only `session` and its callers start Spark."""

from veen.pipeline.read_plan import Piece, Task, plan
from veen.pipeline.selection import Selection, Verify, select
from veen.pipeline.session import read, read_stream, session

__all__ = ["Piece", "Selection", "Task", "Verify", "plan", "read", "read_stream", "select", "session"]
