"""Which faults must meet which calls of which files.

A cell is (artifact, call, fault). `CALLS` lists the calls of a running program for each kind of file. Each of them must
have every error that `disk.ERRORS` lists for the call, and the process must die before, during and after it.
`AT_CREATION` and `EXEMPT` list the calls that need no faults, with the reason. A call that is in no list is a failure,
too: whoever adds a file to a data directory decides which faults it must meet.

Faults that do not belong to a call of a disk have cells with a kind of machine in place of the artifact.
"""

from random import Random

from lab.disk import DEATHS, ERRORS, Coverage, Fault

_REPLACED = ("write", "sync", "replace")  # the calls of `Disk.write_file`
CALLS: dict[str, tuple[str, ...]] = {
    "journal": ("open", "write_at", "sync", "truncate", "unlink"),
    "journal mark": ("open", "write_at", "sync"),
    "folder journal": ("sync_folder",),
    "open chunk": ("open", "write", "sync", "truncate", "unlink", "replace"),
    "chunk": ("write", "sync", "replace", "unlink"),
    "pruned chunk": _REPLACED,
    "manifest": _REPLACED,
    "summary": _REPLACED,
    "peaks": _REPLACED,
    "checkpoint": _REPLACED,
    "checkpoint index": _REPLACED,
    "requested checkpoint": _REPLACED,
    "folder requested": ("make_folder", "sync_folder"),
    "witness keys": _REPLACED,
    "folder witnesses": ("make_folder", "sync_folder"),
    "binding": _REPLACED,
    "nodes": ("open", "write", "sync", "truncate"),
    "folder log": ("sync_folder",),
    "folder nodes": ("sync_folder",),
    "folder data": ("sync_folder",),
    "index": ("commit",),
    "metadata": (*_REPLACED, "unlink"),
    "hand-over": _REPLACED,
    "folder handovers": ("make_folder", "sync_folder"),
    "folder keys": ("make_folder", "sync_folder"),
    "clock": _REPLACED,
    "client state": ("commit",),
    "witness state": _REPLACED,
    "folder of a witness": ("make_folder", "sync_folder"),
    "backup": ("make_folder", "open", "write", "sync", "replace", "link", "unlink", "remove_tree", "sync_filesystem"),
    "backup statement": _REPLACED,
    "folder backups": ("make_folder", "sync_folder"),
}
# The directories of hub, clients and witnesses are made before the faults begin. The tests of `metadata.create`, the
# sweep of a client's directory and the tests of witnesses have these faults.
AT_CREATION: dict[str, tuple[str, ...]] = {
    "data directory": ("sync_folder",),
    "folder attachments": ("make_folder",),
    "folder caps": ("make_folder",),
    "folder client": ("make_folder", "replace", "sync_folder"),
    "folder data": ("make_folder",),
    "folder evidence": ("make_folder",),
    "folder index": ("replace", "sync_filesystem"),
    "folder journal": ("make_folder",),
    "folder log": ("make_folder",),
    "folder nodes": ("make_folder",),
    "folder state": ("make_folder",),
    "folder witness": ("make_folder", "sync_folder"),
    "index": ("sync",),
    "journal mark": ("write", "replace"),
    "key": _REPLACED,
    "limits": _REPLACED,
    "client card": ("open", *_REPLACED),
    "client keys": ("open", *_REPLACED),
    "witness key": _REPLACED,
}
EXEMPT: dict[tuple[str, str], str] = {
    ("backup statement", "unlink"): "only of a backup that was interrupted and is made again",
}

TARGETS: tuple[tuple[str, str, Fault], ...] = tuple(
    (artifact, call, fault)
    for artifact, calls in CALLS.items()
    for call in calls
    for fault in (*DEATHS, *ERRORS.get(call, ()))
)
# Each seed has some of them in turn, so that a thousand seeds have each several times.
SHUFFLED = Random(0).sample(TARGETS, len(TARGETS))

# What a run must have, so that the calls of an artifact occur: a kind of fault, a setting, or a death before that a
# restart cleans up after.
_BACKUP, _WITNESS, _OPERATOR = ("backup",), ("witness",), ("operator", "rotation")
_CLOSED_CHUNKS, _PRUNES = ("small chunks",), ("retention", "small chunks")
NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("binding", "checkpoint", "checkpoint index", "summary", "peaks", "chunk", "nodes"), _CLOSED_CHUNKS
    ),
    "pruned chunk": _PRUNES,
    "manifest": _PRUNES,
    "chunk unlink": _PRUNES,
    "backup": _BACKUP,
    "backup statement": _BACKUP,
    "folder backups": _BACKUP,
    "requested checkpoint": _WITNESS,
    "folder requested": _WITNESS,
    "witness keys": _WITNESS,
    "folder witnesses": _WITNESS,
    "witness state": _WITNESS,
    "folder of a witness": _WITNESS,
    "metadata": _OPERATOR,
    "hand-over": _OPERATOR,
    "folder handovers": _OPERATOR,
    "folder keys": _OPERATOR,
    "clock": ("clock", "operator"),
    "open chunk truncate": ("lost commit",),
    "nodes truncate": ("lost commit",),
    "open chunk replace": ("lost commit", "small chunks"),
    "open chunk unlink": ("compression", "small chunks"),
    "chunk write": ("compression", "small chunks"),
    "chunk sync": ("compression", "small chunks"),
    "journal unlink": ("small segments",),
}

# Faults at moments.
MACHINES = ("hub", "client", "witness")
CLOCK_STEPS_S = (-90_000.0, -3600.0, -70.0, -20.0, -1.0, 1.0, 20.0, 70.0, 3600.0, 90_000.0)
NETWORK_TROUBLE = ("stall", "reset", "delay", "repeat")
REPEATS = ("client",)  # only what a client sent arrives again


def step_name(seconds: float) -> str:
    return f"{seconds:+g} s"


def machine_kind(name: str) -> str:
    """The kind of a machine, by its name."""
    kind = name.partition(" ")[0]
    return kind if kind in MACHINES else "client"


EXPECTED: tuple[tuple[str, str, str], ...] = (
    *((artifact, call, str(fault)) for artifact, call, fault in TARGETS),
    *((machine, "send", one) for machine in MACHINES for one in NETWORK_TROUBLE if one != "repeat"),
    *((machine, "send", "repeat") for machine in REPEATS),
    *((machine, "network", "cut off") for machine in MACHINES),
    *((machine, "clock", step_name(step)) for machine in MACHINES for step in CLOCK_STEPS_S),
    *((machine, "run", how) for machine in MACHINES for how in ("kill", "power cut")),
    *((machine, "disk", "full") for machine in MACHINES),
    ("hub", "sync", "slow"),
    ("hub", "commit", "slow"),
    ("client", "commit", "slow"),
    ("witness", "sync", "slow"),
    ("hub", "signer", "kill"),
)


def needs_of(artifact: str, call: str) -> tuple[str, ...]:
    return NEEDS.get(f"{artifact} {call}", NEEDS.get(artifact, ()))


def shortfall(coverage: Coverage) -> list[str]:
    """What is missing after many seeds: one line for each expected cell that never occurred, and each unlisted call."""
    pairs = {(artifact, call) for lists in (CALLS, AT_CREATION) for artifact, calls in lists.items() for call in calls}
    pairs |= EXEMPT.keys() | {(machine, call) for machine, call, _ in EXPECTED if machine in MACHINES}
    found = [f"never occurred: {', '.join(cell)}" for cell in coverage.missing(EXPECTED)]
    unlisted = sorted({(artifact, call) for artifact, call, _ in coverage.cells} - pairs)
    return found + [f"in no list of lab/coverage.py: {artifact}, {call}" for artifact, call in unlisted]
