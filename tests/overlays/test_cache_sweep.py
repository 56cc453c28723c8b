"""A cache that fails or dies at any commit is a prefix of the log when it is opened again, and equals a refold."""

from pathlib import Path
from random import Random

import pytest

from lab.sweep import Extent, StoreCase, sweep
from tests.overlays.logs import log, root
from tests.overlays.wallets import random_event
from veen.core import Unavailable
from veen.overlays import At, fold
from veen.overlays.kept_fold import LogPrefix
from veen.overlays.kept_fold_lmdb import Cache
from veen.overlays.wallet import WALLETS

STEP, ENTRIES = 9, 45


class Extending(StoreCase):
    """Extends a cache of wallets by some entries at a time, as a reader does whenever the log has grown."""

    errors = (Unavailable,)

    def __init__(self, root_: Path) -> None:
        super().__init__(root_)
        random = Random(5)
        self.log = log(*(random_event(random) for _ in range(ENTRIES)))
        self.extended = 0  # the place up to which the cache was reported to be extended

    def operate(self) -> None:
        with Cache(self.root / "wallets", WALLETS) as cache:
            for start in range(0, ENTRIES, STEP):
                self._extend(cache, start)

    def check(self) -> None:
        with Cache(self.root / "wallets", WALLETS) as cache:
            cache.check(self._root_at)
            with cache.reading() as timeline:
                upto = timeline.upto() or At(0, 0)
            assert upto.stream_seq >= self.extended
            if upto.stream_seq < ENTRIES:
                self._extend(cache, upto.stream_seq, ENTRIES)
            expected = fold(WALLETS, self.log)
            with cache.reading() as timeline:
                assert dict(timeline.states()) == dict(expected.states)
                assert tuple(timeline.faults()) == tuple(expected.faults)

    def _extend(self, cache: Cache, start: int, step: int = STEP) -> None:  # type: ignore[type-arg]
        end = min(start + step, ENTRIES)
        cache.extend(self.log[start:end], root(self.log[:end]))
        self.extended = end

    def _root_at(self, prefix: LogPrefix) -> bytes:
        return root(self.log[: prefix.upto_seq])


@pytest.mark.parametrize("extent", [Extent.SAMPLE, pytest.param(Extent.ALL, marks=pytest.mark.slow)])
def test_a_cache_equals_a_refold_after_a_fault_at_any_call(extent: Extent, tmp_path: Path) -> None:
    report = sweep(Extending, tmp_path, extent)
    assert report.points >= report.calls > 0
