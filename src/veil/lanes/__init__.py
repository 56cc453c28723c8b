"""Lanes: transports for frames between nodes, behind one interface."""

from veil.lanes.certificate import Certificate
from veil.lanes.lane import Endpoint, Health, Lane, LaneLink, LinkLane, Session
from veil.veil_errors import Unavailable

__all__ = ["Certificate", "Endpoint", "Health", "Lane", "LaneLink", "LinkLane", "Session", "Unavailable"]
