"""The result of a signature check reaches its own message or none, whatever workers, callbacks and logs do."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from select import select
from typing import Any, cast

import pytest

from plumbing.background import Background
from plumbing.json_log import JsonLog, LineWriter
from tests.hub.client import PATIENCE_S, Hub, Writer, make_dir, running
from veen.core import Msg, Receipt, SigningKey
from veen.core.envelopes import ErrorEnvelope, StreamRequest
from veen.hub import verifier
from veen.hub.admission_rules import Admission
from veen.hub.conditions import Conditions
from veen.hub.verifier import SEND_EVERY, Answer, ProcessVerifier, Signed, Verifier
from veen.hub.verify_worker import ANSWER, ITEM_BYTES, NUMBER_BYTES, REQUEST_BYTES, VALID, answer_to

DIGEST = bytes(32)

# Changes that a faulty worker makes to the right answers, each `number || 0 or 1`.
HONEST = "answers"
WRONG = {
    "the other way round": "answers[::-1]",
    "without the first": "answers[1:]",
    "with the first twice": "answers[:1] + answers",
    "one place on": "[a[:8] + b[8:] for a, b in zip(answers[1:] + answers[:1], answers)]",
    "with a number that was never given": "[bytes(8) + answers[0][8:], *answers[1:]]",
    "with a word that is neither yes nor no": "[answers[0][:8] + b'\\x02', *answers[1:]]",
    "with more than was asked": "[*answers, answers[-1]]",
    "with a byte too few at the start": "[answers[0][1:], *answers[1:], b'\\x01']",
    "without their numbers": "[a[8:] for a in answers] * 9",
}
WORKER = """
import socket, sys
from veen.hub.verify_worker import REQUEST_BYTES, answer_to
channel = socket.socket(fileno=int(sys.argv[1]))
data = b""
while received := channel.recv(1 << 16):
    data += received
    if len(data) < {batch} * REQUEST_BYTES:
        continue
    answers = [answer_to(data[at : at + REQUEST_BYTES]) for at in range(0, len(data), REQUEST_BYTES)]
    data = b""
    channel.sendall(b"".join({made}))
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Make every worker answer in batches of a given size, with changed answers."""

    def use(made: str, batch: int) -> None:
        script, program = tmp_path / "worker.py", tmp_path / "python"
        script.write_text(WORKER.format(made=made, batch=batch))
        program.write_text(
            f'#!/bin/sh\ncase "$2" in *verify_worker) exec "{sys.executable}" "{script}" "$3";; esac\n'
            f'exec "{sys.executable}" "$@"\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return use


def item(key: SigningKey, *, valid: bool) -> Signed:
    signature = key.sign(DIGEST)
    return key.public_key, DIGEST, signature if valid else bytes(64)


class Checks:
    """A verifier on its own loop, and its results."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop, Any, Any], Verifier]) -> None:
        self._make = make
        self.heard: list[tuple[int, bool]] = []
        self.reported: list[BaseException] = []
        self.broke: list[BaseException] = []

    def run(self, *items: Signed, failing: frozenset[int] = frozenset()) -> "Checks":
        """Check all items; callbacks named in `failing` raise. Returns when all are answered, or on a fatal error."""
        asyncio.run(asyncio.wait_for(self._run(items, failing), PATIENCE_S))
        return self

    async def _run(self, items: tuple[Signed, ...], failing: frozenset[int]) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        unhandled: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: unhandled.append(context))

        def broke(error: BaseException) -> None:
            self.broke.append(error)
            ended.set()

        def answer(number: int) -> Answer:
            def record_result(held: bool) -> None:
                self.heard.append((number, held))
                if len(self.heard) == len(items):
                    ended.set()
                if number in failing:
                    raise OSError("the callback failed")

            return record_result

        checks = self._make(loop, broke, lambda _, error: self.reported.append(error))
        try:
            for number, one in enumerate(items):
                checks.check(one, answer(number))
            await ended.wait()
            await asyncio.sleep(0)
        finally:
            checks.close()
        assert unhandled == []


def conditions(loop: asyncio.AbstractEventLoop) -> Conditions:
    return Conditions(loop, JsonLog(LineWriter(None), "hub", "authority"))


def of_thread(loop: asyncio.AbstractEventLoop, broke: Any, report: Any) -> Verifier:
    return verifier.start(loop, 0, conditions(loop), broke, report, Background())


def of_process(loop: asyncio.AbstractEventLoop, broke: Any, report: Any) -> Verifier:
    return verifier.start(loop, 1, conditions(loop), broke, report, Background())


def of_pool(loop: asyncio.AbstractEventLoop, broke: Any, report: Any) -> Verifier:
    return verifier.start(loop, 2, conditions(loop), broke, report, Background())


EVERY = pytest.mark.parametrize("make", [of_thread, of_process, of_pool])


@EVERY
def test_every_question_has_its_own_answer(make: Any) -> None:
    wanted = [number % 3 == 0 for number in range(100)]
    checks = Checks(make).run(*(item(SigningKey.generate(), valid=held) for held in wanted))
    assert sorted(checks.heard) == list(enumerate(wanted))
    assert not checks.broke


@pytest.mark.parametrize(("count", "told"), [(1, True), (SEND_EVERY, False), (SEND_EVERY + 1, True)])
def test_checks_begin_while_the_loop_is_busy(count: int, told: bool) -> None:
    """Checks that are many, or flushed before the loop is busy, are answered before the next turn."""

    async def ask() -> None:
        heard: list[bool] = []
        loop = asyncio.get_running_loop()
        checks = ProcessVerifier(loop, conditions(loop), lambda error: None, lambda what, error: None)
        try:
            for _ in range(count):
                checks.check(item(SigningKey.generate(), valid=True), heard.append)
            if told:
                checks.flush()
            data = b""
            while len(data) < count * ANSWER.size:
                assert select([checks._channel], [], [], PATIENCE_S)[0]
                data += checks._channel.recv(1 << 16)
            assert [word for _, word in ANSWER.iter_unpack(data)] == [VALID] * count
        finally:
            checks.close()

    asyncio.run(ask())


@EVERY
def test_a_failing_callback_does_not_affect_other_checks(make: Any) -> None:
    wanted = [number % 2 == 1 for number in range(40)]
    failing = frozenset({0, 1, 17, 39})
    checks = Checks(make).run(*(item(SigningKey.generate(), valid=held) for held in wanted), failing=failing)
    assert sorted(checks.heard) == list(enumerate(wanted))
    assert [str(error) for error in checks.reported] == ["the callback failed"] * len(failing)
    assert not checks.broke


@pytest.mark.parametrize("made", WRONG.values(), ids=WRONG.keys())
def test_no_answer_counts_for_another_question(made: str, worker: Callable[[str, int], None]) -> None:
    worker(made, 3)
    key = SigningKey.generate()
    wanted = [False, True, False]
    checks = Checks(of_process).run(*(item(key, valid=held) for held in wanted))
    assert [str(error) for error in checks.broke] == ["a verification worker sent an answer that matches no check"]
    assert checks.heard == []


def test_the_wrong_workers_are_wrong_in_that_alone(worker: Callable[[str, int], None]) -> None:
    worker(HONEST, 3)
    key = SigningKey.generate()
    checks = Checks(of_process).run(*(item(key, valid=held) for held in (False, True, False)))
    assert checks.heard == [(0, False), (1, True), (2, False)]


def test_an_answer_that_comes_in_pieces_is_one_answer(worker: Callable[[str, int], None]) -> None:
    worker("[b'' for a in answers for byte in a if channel.sendall(bytes([byte]))]", 100)
    wanted = [number % 3 == 0 for number in range(100)]
    key = SigningKey.generate()
    checks = Checks(of_process).run(*(item(key, valid=held) for held in wanted))
    assert checks.heard == list(enumerate(wanted))


def test_workers_that_never_live_break_the_hub_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    checks = Checks(of_process).run(item(SigningKey.generate(), valid=True))
    assert [str(error) for error in checks.broke] == ["verification workers exit right after their start"]
    assert checks.heard == []


def test_a_worker_that_cannot_be_replaced_breaks_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nrm "$0"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    checks = Checks(of_process).run(item(SigningKey.generate(), valid=True))
    assert [type(error) for error in checks.broke] == [FileNotFoundError]


def test_a_mistake_in_the_thread_breaks_the_hub() -> None:
    checks = Checks(of_thread).run(item(SigningKey.generate(), valid=True), cast(Signed, None))
    assert [type(error) for error in checks.broke] == [TypeError]


def test_a_worker_answers_under_the_number_it_was_asked_by() -> None:
    number, key = os.urandom(NUMBER_BYTES), SigningKey.generate()
    for held in (True, False):
        question = number + b"".join(item(key, valid=held))
        assert len(question) == REQUEST_BYTES == NUMBER_BYTES + ITEM_BYTES
        assert answer_to(question) == number + bytes([held])
        assert ANSWER.unpack(answer_to(question)) == (int.from_bytes(number), held)


# In a hub.


def forged(writer: Writer, victim: bytes) -> Msg:
    """A message in another client's name, signed by the writer."""
    return writer.signed(replace(writer.message(), client_id=victim))


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard error is a pipe without reader."""
    heard, said = os.pipe()
    os.close(heard)
    with open(said, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        yield
        monkeypatch.undo()
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), said)  # so that what it still holds can be let go


@pytest.mark.parametrize("workers", [0, 1])
def test_no_forged_message_is_accepted_where_the_log_cannot_be_written(
    tmp_path: Path, workers: int, deaf: None
) -> None:
    with running(make_dir(tmp_path), workers=workers, log_submits=True) as hub:
        writer, victim = hub.writer(), SigningKey.generate().public_key
        bad = writer.message(sig=bytes(64))
        answers = hub.batch(bad.encode(), forged(writer, victim).encode())
        assert [a.detail["detail_enum"] for a in answers if isinstance(a, ErrorEnvelope) and a.detail] == [
            "SIG_INVALID"
        ] * 2
        assert writer.send().stream_seq == 1
        kept = hub.batch(*writer.next_messages(20))
        assert [answer.stream_seq for answer in kept if isinstance(answer, Receipt)] == list(range(2, 22))


def test_a_hub_with_a_worker_that_mixes_up_answers_admits_nothing_and_ends(
    tmp_path: Path, worker: Callable[[str, int], None]
) -> None:
    worker(WRONG["the other way round"], 2)
    hub = Hub(make_dir(tmp_path), settings={"admission": Admission.OPEN, "workers": 1}).start()
    try:
        writer = hub.writer()
        outcomes: list[object] = []

        async def submit(*messages: Msg) -> None:
            for message in messages:
                hub.service.pipeline.submit(message.encode(), outcomes.append)

        hub.do(submit(forged(writer, SigningKey.generate().public_key), writer.message()))
        assert hub.service.broken is not None
        assert "matches no check" in str(hub.do(hub.service.broken))
        assert outcomes == []
        found = hub.post("/v1/stream", StreamRequest(hub.label("s"), 1)).refusal()
        assert found[1] == "E.NOT_FOUND"
    finally:
        hub.do(closed(hub))
        hub.abandon()


async def closed(hub: Hub) -> None:
    hub.service.pipeline._verifier.close()
