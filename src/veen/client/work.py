"""The work a hub asks for before it reads a message. It is done within bounds, and unasked once a hub has asked."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from veen.core import Malformed, Refused
from veen.core.powcookie import HEADER, challenge_of, solve

# Beyond this many times the usual number of tries something is wrong: nobody is that unlucky.
_UNLUCKY = 64

Send = Callable[[dict[str, str]], Awaitable[bytes]]  # with these headers


@dataclass(frozen=True, slots=True)
class Asked:
    """Which hub wants how many zero bits."""

    hub_id: bytes
    difficulty: int

    @classmethod
    def of(cls, refused: Refused, body: bytes) -> "Asked | None":
        """What a refusal asks for; None where it asks for no work. Only this very request is ever worked for."""
        said = refused.detail
        if refused.detail_enum != "PREFILTER_REJECT" or not isinstance(said.get("difficulty"), int):
            return None
        asked = cls(_bytes(said.get("hub_id")), int(said["difficulty"]))
        if challenge_of(asked.hub_id, body) != _bytes(said.get("challenge")):
            raise Malformed("proof of work", "the hub's challenge is not that of this request")
        return asked


class Workbench:
    """What one hub asked for last."""

    def __init__(self, most_bits: int) -> None:
        self._most_bits = most_bits
        self._asked: Asked | None = None

    async def send(self, body: bytes, send: Send, *, ahead: bool) -> bytes:
        """Send a request, with work where the hub wants it and it is not too much. Raises what `send` raises.

        With `ahead`, what the hub asked for last is done before it asks again.
        """
        headers: dict[str, str] = {}
        if ahead and self._asked:
            headers = await self._worked(self._asked, body)
        try:
            return await send(headers)
        except Refused as refused:
            asked = Asked.of(refused, body)
            if asked is None or asked.difficulty > self._most_bits:
                raise
        if ahead:
            self._asked = asked
        return await send(await self._worked(asked, body))

    async def _worked(self, asked: Asked, body: bytes) -> dict[str, str]:
        challenge, tries = challenge_of(asked.hub_id, body), _UNLUCKY << asked.difficulty
        cookie = await asyncio.to_thread(lambda: solve(challenge, asked.difficulty, most_tries=tries))
        return {HEADER: cookie.header()}


def _bytes(said: object) -> bytes:
    try:
        return bytes.fromhex(said) if isinstance(said, str) else b""
    except ValueError:
        return b""
