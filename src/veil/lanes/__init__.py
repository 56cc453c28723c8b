"""Lanes: how frames reach other nodes. Any way that two nodes can exchange bytes is one, behind one interface."""

from veil.errors import Unavailable
from veil.lanes.certificate import Certificate
from veil.lanes.endpoint import Endpoint
from veil.lanes.health import Health
from veil.lanes.lane import Lane, Link, LinkLane, Session

__all__ = ["Certificate", "Endpoint", "Health", "Lane", "Link", "LinkLane", "Session", "Unavailable"]
