"""Work off the loop: reads of the log happen on an executor, so that a slow disk does not hold everyone up."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from veen.core import Malformed, Refused, Unavailable, Unverified
from veen.hub import answers
from veen.hub.http.message import Respond, Response


class Later:
    """Does things on the executor and answers on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self.loop = loop
        self.executor = executor

    def __call__(self, work: Callable[[], Response], respond: Respond, *, as_json: bool) -> None:
        self.executor.submit(self._run, work, respond, as_json)

    def _run(self, work: Callable[[], Response], respond: Respond, as_json: bool) -> None:
        try:
            response = work()
        except (Malformed, Unverified, Unavailable, Refused) as error:
            response = answers.refusal(answers.as_refused(error), as_json=as_json)
        except Exception:
            failed = answers.refusal(
                Refused("E.UNAVAILABLE", "the hub failed to answer", retry_after=1), as_json=as_json
            )
            self.loop.call_soon_threadsafe(respond, failed)
            raise
        self.loop.call_soon_threadsafe(respond, response)
