"""Queries over the table of events: the same answer whether computed in this process or on Spark."""

from veen.pipeline.engine.aggregate import UNWATCHED, QueryWatch
from veen.pipeline.engine.engine import AnswerBasis, Engine, EngineAnswer, RowPlace
from veen.pipeline.engine.event_query import EventQuery, EvidencePolicy, Metric

__all__ = [
    "AnswerBasis",
    "Engine",
    "EngineAnswer",
    "EventQuery",
    "EvidencePolicy",
    "Metric",
    "QueryWatch",
    "RowPlace",
    "UNWATCHED",
]
