"""Changes of the principals of a query service by several processes at once."""

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from veen.query.policy import PolicyBook, QueryPrincipal

TOKENS = 6
PROCESSES = 4


def change(path: Path, number: int, start: Barrier) -> None:
    book = PolicyBook(path)
    start.wait()
    for token in range(TOKENS):
        book.issue("bob", f"{number}.{token}")
        if token % 2:
            book.revoke("bob", f"{number}.{token}")


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    book = PolicyBook(tmp_path / "principals.json")
    book.put(QueryPrincipal("bob", "01" * 32))
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(PROCESSES)
    running = [spawn.Process(target=change, args=(book.path, number, start)) for number in range(PROCESSES)]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0] * PROCESSES
    bob = book.get("bob")
    assert bob is not None
    expected = {f"{number}.{token}" for number in range(PROCESSES) for token in range(0, TOKENS, 2)}
    assert {token.name for token in bob.tokens} == expected
