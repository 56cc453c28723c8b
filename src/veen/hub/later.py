"""Work off the loop: what waits for a disk happens on an executor, so that a slow one does not hold everyone up."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from http import HTTPStatus
from typing import TypeVar

from veen.core import Malformed, Refused, Unavailable, Unverified
from veen.http.message import Report, Request, Respond, Response
from veen.hub import answers
from veen.hub.lane import Job, Lane

T = TypeVar("T")

# Of the executor's four threads. Pages and subscribers, which have a lane of one, leave one to what is short.
_SHORT_AT_ONCE = 4
_LONG_AT_ONCE = 2
_WRITES_AT_ONCE = 2
# What waits beyond them: in all, and of one connection.
MOST_SHORT, SHORT_SHARE = 4096, 128
MOST_LONG, LONG_SHARE = 256, 16
_RETRY_AFTER_S = 1


class Later:
    """Does things on the executor and answers on the loop. `report` hears of our own mistakes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor, report: Report) -> None:
        self.loop = loop
        self._executor = executor
        self._report = report
        self.short = Lane(loop, executor, _SHORT_AT_ONCE, MOST_SHORT, SHORT_SHARE)
        self.long = Lane(loop, executor, _LONG_AT_ONCE, MOST_LONG, LONG_SHARE)
        self._writes = Lane(loop, executor, _WRITES_AT_ONCE)

    def __call__(self, work: Callable[[], T], done: Callable[[T | Response], None], *, as_json: bool) -> None:
        """`done` hears what `work` returns, or the answer that says why it failed. Each upload has one at a time."""
        self._writes.put(Job(lambda: self._run(work, done, as_json)))

    def answer(self, request: Request, work: Callable[[], Response], respond: Respond, *, long: bool = False) -> None:
        """As above, for a request: it may be told to come again, and is dropped once nobody waits. Pages are `long`."""
        as_json = answers.wants_json(request)
        lane = self.long if long else self.short
        if not lane.put(Job(lambda: self._run(work, respond, as_json), request.connection, request.is_lost)):
            refused = Refused("E.UNAVAILABLE", "too many are being answered", retry_after=_RETRY_AFTER_S)
            respond(answers.refusal(refused, as_json=as_json))

    def quietly(self, work: Callable[[], None]) -> None:
        """Do it without an answer; at once where the executor has closed."""
        try:
            self._executor.submit(self._try, work)
        except RuntimeError:
            self._try(work)

    def _run(self, work: Callable[[], T], done: Callable[[T | Response], None], as_json: bool) -> None:
        outcome: T | Response
        try:
            outcome = work()
        except (Unverified, Unavailable, Refused) as error:
            outcome = answers.refusal(answers.as_refused(error), as_json=as_json)
        except Malformed as error:  # requests are judged before: this is what the hub keeps
            self._tell(error)
            refused = Refused("E.UNAVAILABLE", f"what the hub keeps is damaged: {error}")
            outcome = answers.refusal(refused, as_json=as_json, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        except OSError as error:
            self._tell(error)
            outcome = answers.refusal(
                answers.as_refused(Unavailable(f"the disk says: {error.strerror}")), as_json=as_json
            )
        except Exception as error:  # noqa: BLE001  whatever it is, someone waits for an answer
            self._tell(error)
            refused = Refused("E.UNAVAILABLE", "the hub failed to answer; its log says why")
            outcome = answers.refusal(refused, as_json=as_json, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        self.loop.call_soon_threadsafe(done, outcome)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        self.loop.call_soon_threadsafe(self._report, "executor", error)
