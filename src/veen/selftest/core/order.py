"""Which of two faults is the answer: the one whose row comes first. Spec §8.2, tie-breaking."""

from itertools import combinations_with_replacement

from veen.core.admission import BY_DETAIL, Stage
from veen.core.envelopes import SubmitResponse
from veen.selftest import drafts
from veen.selftest.check import Check, claim
from veen.selftest.trial import Trial
from veen.selftest.verdict import Failed, Skipped


def _expect_first(trial: Trial, faults: tuple[str, ...]) -> None:
    try:
        trial.probe.submit(drafts.draft(trial, *faults).encode()).expect_row(faults[0])
    except Failed as failed:
        raise Failed(f"{' and '.join(faults)} at once: {failed}") from None


def _stages(first: Stage, second: Stage) -> Check:
    where = f"two faults at {first}" if first is second else f"a fault at {first} and one at {second}"

    @claim(f"order.{first}-{second}", f"of {where}, the first in the table is the answer", "§8.1–8.2")
    def ordered(trial: Trial) -> str:
        tried = [
            (one, other)
            for one, other in drafts.pairs(trial)
            if (BY_DETAIL[one].stage, BY_DETAIL[other].stage) == (first, second)
        ]
        if not tried:
            raise Skipped("no such pair can be provoked at this hub with what was given")
        if trial.may_write:
            trial.probe.submit(drafts.draft(trial).encode()).read(SubmitResponse)  # or a refusal would prove nothing
        for pair in tried:
            _expect_first(trial, pair)
        return f"{len(tried)} pairs"

    return ordered


@claim("order.all", "with every fault at once, they come to light in the order of the table", "§8.1–8.2")
def every_fault(trial: Trial) -> str:
    left = tuple(fault for fault in drafts.possible(trial) if fault not in ("CAP_MISSING", "CLIENT_SEQ", "EPOCH"))
    for start in range(len(left)):
        _expect_first(trial, left[start:])
    return f"{len(left)} faults"


# Prefilter has one row that can be provoked, so there is no pair within it.
CHECKS = (
    *(_stages(one, other) for one, other in combinations_with_replacement(Stage, 2) if other is not Stage.PREFILTER),
    every_fault,
)
