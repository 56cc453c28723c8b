"""Which faults must meet which calls of which files.

A cell is (artifact, call, fault). `CALLS` lists the calls that the write path makes for each kind of file. Each of them
must have every error that `disk.ERRORS` lists for the call, and the process must die before, during and after it.
"""

from lab.disk import DEATHS, ERRORS, Fault

CALLS: dict[str, tuple[str, ...]] = {
    "journal": ("open", "write_at", "sync", "truncate", "unlink"),
    "journal mark": ("open", "write_at", "sync"),
    "folder journal": ("sync_folder",),
    "open chunk": ("open", "write", "sync"),
    "chunk": ("replace", "unlink"),
    "pruned chunk": ("write", "sync", "replace"),
    "manifest": ("write", "sync", "replace"),
    "summary": ("write", "sync", "replace"),
    "peaks": ("write", "sync", "replace"),
    "checkpoint": ("write", "sync", "replace"),
    "checkpoint index": ("write", "sync", "replace"),
    "binding": ("write", "sync", "replace"),
    "nodes": ("open", "write", "sync"),
    "folder log": ("sync_folder",),
    "folder nodes": ("sync_folder",),
    "folder data": ("sync_folder",),
    "index": ("commit",),
    "client state": ("commit",),
    "witness state": ("write", "sync", "replace"),
    "backup": ("open", "write", "replace"),
    "backup statement": ("write", "sync", "replace"),
}

TARGETS: tuple[tuple[str, str, Fault], ...] = tuple(
    (artifact, call, fault)
    for artifact, calls in CALLS.items()
    for call in calls
    for fault in (*DEATHS, *ERRORS.get(call, ()))
)
EXPECTED = tuple((artifact, call, str(fault)) for artifact, call, fault in TARGETS)
