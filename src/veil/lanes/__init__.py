"""Lanes: how frames reach other nodes. Any way that two nodes can exchange bytes is one, behind one interface."""

from veil.lanes.certificate import Certificate
from veil.lanes.endpoint import Endpoint
from veil.lanes.lane import Health, Lane, LaneLink, LinkLane, Session
from veil.veil_errors import Unavailable

__all__ = ["Certificate", "Endpoint", "Health", "Lane", "LaneLink", "LinkLane", "Session", "Unavailable"]
