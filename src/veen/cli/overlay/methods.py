"""What answers a call: a command that reads and writes JSON, or a Python function."""

import importlib
import json
import re
import shlex
import subprocess
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

    def run(args: cbor.Value) -> cbor.Value:
        given = json.dumps(_shown(args)).encode()
        try:
            ran = subprocess.run(words, input=given, capture_output=True, check=False, timeout=timeout_s)
        except OSError as error:
            raise RpcFailure(FAILED, error.strerror) from None
        except subprocess.TimeoutExpired:
            raise RpcFailure(FAILED, f"it did not end within {timeout_s:g} s") from None
        if ran.returncode:
            told = ran.stderr.decode(errors="replace").strip().splitlines()
            raise RpcFailure(FAILED, told[-1][:_LONGEST_DETAIL] if told else f"status {ran.returncode}")
        try:
            return value_of(ran.stdout.decode())
        except ValueError:
            raise RpcFailure(FAILED, "what it wrote is no JSON that a call can carry") from None

    return run


def _shown(value: cbor.Value) -> object:
    """A value as JSON has it: bytes as hex."""
    from veen.cli.overlay import telling

    if isinstance(value, bytes):
        return value.hex()
    found = telling.plain_json(value)
    return json.loads(json.dumps(found, default=telling.json_value))
