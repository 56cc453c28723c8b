"""What answers a call: a command that reads and writes JSON, or a Python function."""

import asyncio
import importlib
import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from terminalface.command import Misuse
from veen.core import cbor
from veen.overlays.rpc import RpcFailure
from veen.state.calls import FAILED, Method

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LONGEST_DETAIL = 500


def parse(text: str, timeout_s: float | None = None) -> tuple[str, Method]:
    """METHOD=COMMAND, or METHOD=package.module:function. A command may run for `timeout_s`."""
    name, _, what = text.partition("=")
    if not name or not what.strip():
        raise Misuse(f"{text!r} is not METHOD=COMMAND", "give the name of the method, =, and what answers it")
    return name, _function(what) if _FUNCTION.fullmatch(what) else _command(what, timeout_s)


def value_of(text: str) -> cbor.Value:
    """JSON as a value that a call can carry. Raises `ValueError` over fractions and the like."""
    found: Any = json.loads(text)
    cbor.encode(found)
    value: cbor.Value = found
    return value


def _function(what: str) -> Method:
    module, _, name = what.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Misuse(f"{what} cannot be loaded: {error}", "check the name, and that the package is installed") from None
    if not callable(found):
        raise Misuse(f"{what} is no function", "name one that takes the arguments and returns the result")
    method: Method = found
    return method


def _command(what: str, timeout_s: float | None) -> Method:
    try:
        words = shlex.split(what)
    except ValueError as error:
        raise Misuse(f"{what!r} is no command: {error}".lower(), "quote it as for a shell") from None

    async def run(args: cbor.Value) -> cbor.Value:
        status, out, err = await _ran(words, json.dumps(_shown(args)).encode(), timeout_s)
        if status:
            told = err.decode(errors="replace").strip().splitlines()
            raise RpcFailure(FAILED, told[-1][:_LONGEST_DETAIL] if told else f"status {status}")
        try:
            return value_of(out.decode())
        except ValueError:
            raise RpcFailure(FAILED, "what it wrote is no JSON that a call can carry") from None

    return run


async def _ran(words: Sequence[str], given: bytes, timeout_s: float | None) -> tuple[int, bytes, bytes]:
    """A command's status and what it wrote. It does not outlive the call, however that ends."""
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise RpcFailure(FAILED, error.strerror) from None
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await child.communicate(given)
    except TimeoutError:
        raise RpcFailure(FAILED, f"it did not end within {timeout_s:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode or 0, out, err


def _shown(value: cbor.Value) -> object:
    """A value as JSON has it: bytes as hex."""
    from veen.cli.overlay import telling

    if isinstance(value, bytes):
        return value.hex()
    found = telling.plain_json(value)
    return json.loads(json.dumps(found, default=telling.json_value))
