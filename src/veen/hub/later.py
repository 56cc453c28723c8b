"""Work off the loop: what waits for a disk happens on an executor, so that a slow one does not hold everyone up."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from http import HTTPStatus
from typing import TypeVar

from veen.core import Malformed, Refused, Unavailable, Unverified
from veen.http.message import Report, Request, Respond, Response
from veen.hub import answers
from veen.hub.conditions import Conditions, Reason, public_text, system_error
from veen.hub.lane import Job, Lane
from veen.storage.openings import SAFELY

T = TypeVar("T")
Failed = Callable[[Exception], None]

# Of the executor's four threads. Pages and subscribers, which have a lane of one, leave one to what is short.
_SHORT_AT_ONCE = 4
_LONG_AT_ONCE = 2
_WRITES_AT_ONCE = 2
# What waits beyond them: in all, and of one connection.
MOST_SHORT, SHORT_SHARE = 4096, 128
MOST_LONG, LONG_SHARE = 256, 16
_RETRY_AFTER_S = 1
_DAMAGED = "its log says where, and veen fsck DIR finds what can be repaired"


class Later:
    """Does things on the executor and answers on the loop. `report` hears of our own mistakes.

    A client learns that a file of the hub failed, never which one: the log has the path.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, executor: Executor, conditions: Conditions, report: Report
    ) -> None:
        self.loop = loop
        self._executor = executor
        self._conditions = conditions
        self._report = report
        self.short = Lane(loop, executor, _SHORT_AT_ONCE, MOST_SHORT, SHORT_SHARE, self._relieved("short"))
        self.long = Lane(loop, executor, _LONG_AT_ONCE, MOST_LONG, LONG_SHARE, self._relieved("long"))
        self._writes = Lane(loop, executor, _WRITES_AT_ONCE)

    def __call__(
        self, work: Callable[[], T], done: Callable[[T | Response], None], failed: Failed, *, as_json: bool
    ) -> None:
        """Write attachments. `done` gets what `work` returns, or the answer that says why it failed.

        `failed` gets the error where the disk refused, before `done`. Each upload has one job at a time.
        """
        reason = Reason.ATTACHMENT_WRITE
        self._writes.put(Job(lambda: self._run(work, done, failed, reason, as_json)))

    def answer(self, request: Request, work: Callable[[], Response], respond: Respond, *, long: bool = False) -> None:
        """As above, for a request: it may be told to come again, and is dropped once nobody waits. Pages are `long`."""
        as_json = answers.wants_json(request)
        endpoint = "/".join(request.path.split("/", 3)[:3])

        def done(response: Response) -> None:
            if response.status < HTTPStatus.BAD_REQUEST:
                self._conditions.leave(Reason.STORAGE, endpoint)
            respond(response)

        def failed(error: Exception) -> None:
            self.note(error, endpoint)

        lane, name = (self.long, "long") if long else (self.short, "short")
        job = Job(lambda: self._run(work, done, failed, Reason.STORAGE, as_json), request.connection, request.is_lost)
        if not lane.put(job):
            text = self._conditions.enter(Reason.READ_OVERLOAD, source=name, lane=name)
            refused = Refused("E.UNAVAILABLE", text, retry_after=_RETRY_AFTER_S)
            respond(answers.refusal(refused, as_json=as_json))

    def quietly(self, work: Callable[[], None]) -> None:
        """Do it without an answer; at once where the executor has closed."""
        try:
            self._executor.submit(self._try, work)
        except RuntimeError:
            self._try(work)

    def note(self, error: Exception, where: str) -> None:
        """On the loop: reading or writing what the hub keeps failed at `where`, or a mistake of ours did."""
        if isinstance(error, Malformed):  # which only a repair ends
            self._conditions.enter(Reason.DAMAGE, error, source=str(error))
        elif isinstance(error, (Unavailable, OSError)):
            found = system_error(error)
            path = None if found is None else found.filename
            if path is None:
                self._conditions.enter(Reason.STORAGE, error, source=where)
            else:
                self._conditions.enter(Reason.STORAGE, error, source=path, recheck=lambda: not _opens(path))
        else:
            self._report(where, error)

    def _run(
        self,
        work: Callable[[], T],
        done: Callable[[T | Response], None],
        failed: Failed,
        reason: Reason,
        as_json: bool,
    ) -> None:
        outcome: T | Response
        try:
            outcome = work()
        except (Unverified, Refused) as error:
            outcome = answers.refusal(answers.as_refused(error), as_json=as_json)
        except (Unavailable, OSError) as error:
            self.loop.call_soon_threadsafe(failed, error)
            text = public_text(reason, error)
            refused = Refused("E.UNAVAILABLE", text, retry_after=_RETRY_AFTER_S)
            outcome = answers.refusal(refused, as_json=as_json)
        except Malformed as error:  # requests are judged before: this is what the hub keeps
            self.loop.call_soon_threadsafe(failed, error)
            refused = Refused("E.UNAVAILABLE", f"{public_text(Reason.DAMAGE)}: {_DAMAGED}")
            outcome = answers.refusal(refused, as_json=as_json, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        except Exception as error:  # noqa: BLE001  whatever it is, someone waits for an answer
            self.loop.call_soon_threadsafe(self._report, "executor", error)
            refused = Refused("E.UNAVAILABLE", "the hub failed to answer; its log says why")
            outcome = answers.refusal(refused, as_json=as_json, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        self.loop.call_soon_threadsafe(done, outcome)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self.loop.call_soon_threadsafe(self.note, error, "executor")

    def _relieved(self, name: str) -> Callable[[], None]:
        return lambda: self._conditions.leave(Reason.READ_OVERLOAD, name)


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | SAFELY))
    except OSError:
        return False
    return True
