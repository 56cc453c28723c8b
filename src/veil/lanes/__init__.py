"""Lanes: transports for frames between nodes, behind one interface."""

from veil.lanes.certificate import Certificate
from veil.lanes.endpoint import Endpoint
from veil.lanes.lane import Health, Lane, LaneLink, LinkLane, Session
from veil.veil_errors import Unavailable

__all__ = ["Certificate", "Endpoint", "Health", "Lane", "LaneLink", "LinkLane", "Session", "Unavailable"]
