"""`veen hub clock`: the time of a hub, and what to do after its wall clock jumped."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbing.cli.command import command, group
from veen.cli.kit.common_options import HubUrl, JsonOption, LocalDir
from veen.cli.kit.result import Moment, Result

if TYPE_CHECKING:
    from veen.cli.kit.hub_api import HubApi

app = group(
    "clock",
    """Show the time of a hub, and accept its wall clock after a jump.

    The hub follows the wall clock of its machine. After a jump it continues at its own time, which never goes back,
    until the clock is corrected or the operator accepts the new time.
    """,
)
_ACCEPT = "veen hub clock accept"
_STEP_HINT = (
    "hint: the wall clock jumped, and the hub continues at its own time; "
    f"correct the clock of the machine, or run {_ACCEPT} if the new time is right"
)
_UNWATCHED_HINT = (
    f"hint: no hub watched the clock for {{}} days, so nothing is pruned by age; run {_ACCEPT} if the clock is right"
)
_AHEAD_HINT = "hint: the hub runs at half speed until the wall clock has caught up"


@command(app, "show", "veen hub clock show --data-dir hub", "veen hub clock show --hub http://127.0.0.1:37411 --json")
def show(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Compare the time of a hub with its wall clock.

    The state is "following", "holding" after a jump of the wall clock, or "ahead" while the hub runs at half speed
    because the wall clock is behind. If no hub runs on the data directory, the end of its log is compared.
    """
    from veen.cli.hub import hub_process

    if data_dir is not None and _is_stopped(data_dir):
        _stopped(data_dir).show(as_json)
        return
    with hub_process.hub(hub, data_dir) as api:
        found = _clock_of(api)
    hints = {"holding": _STEP_HINT, "ahead": _AHEAD_HINT}
    remarks = [hints[found["state"]]] if found["state"] in hints else []
    if unwatched := found.get("unwatched_sec"):
        remarks.append(_UNWATCHED_HINT.format(round(unwatched / 86_400)))
    Result({"url": api.url, **_shown(found)}, remarks=tuple(remarks)).show(as_json)


@command(app, "accept", "veen hub clock accept --data-dir hub", "veen hub clock accept --hub https://hub.example")
def accept(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Accept the wall clock of a hub as right.

    A running hub then follows it. It needs the token in VEEN_OPERATOR_TOKEN that the hub was started with. If no hub
    runs on the data directory, the next start accepts the current time, however far it is from the end of the log.

    If the accepted time is behind the time of the hub, the hub does not go back: it runs at half speed until the wall
    clock has caught up. If it is ahead, lifetimes of capabilities end as if that time had passed.
    """
    from veen.cli.hub import hub_process, hub_settings

    if data_dir is not None and _is_stopped(data_dir):
        _accept_stopped(data_dir).show(as_json)
        return
    token = hub_settings.operator_token()
    with hub_process.hub(hub, data_dir) as api:
        before = _clock_of(api)
        after = api.accept_clock(int(before["wall_ts"]), token)
    data = {"url": api.url, "state_before": before["state"], "hub_ts_before": Moment(before["hub_ts"]), **_shown(after)}
    Result(data, remarks=(_AHEAD_HINT,) if after["state"] == "ahead" else ()).show(as_json)


def _is_stopped(data_dir: Path) -> bool:
    from veen.cli.hub import hub_process

    return hub_process.find(data_dir) is None and not hub_process.is_locked(data_dir)


def _clock_of(api: "HubApi") -> dict[str, Any]:
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable

    found = api.status().get("clock")
    if not isinstance(found, dict) or not {"state", "hub_ts", "wall_ts"} <= found.keys():
        raise hinted(Unavailable(f"{api.url} does not report its clock"), "its version is too old; upgrade the hub")
    return found


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """The clock of a status, the most important fields first."""
    hub_ts, wall_ts = Moment(found["hub_ts"]), Moment(found["wall_ts"])
    first = {"state": found["state"], "hub_ts": hub_ts, "wall_ts": wall_ts, "lead_sec": hub_ts - wall_ts}
    return first | {name: value for name, value in found.items() if name not in first}


def _stopped(data_dir: Path) -> Result:
    """The end of the log and the wall clock, and whether a start with the default settings would accept it."""
    from veen.cli.hub import hub_process
    from veen.hub.config import HubConfig
    from veen.hub.hub_time import ClockGap, check_start, read_mark

    folders, wall, config = hub_process.folders(data_dir), int(time.time()), HubConfig(data_dir)
    last, mark = hub_process.last_hub_ts(data_dir), read_mark(folders)
    remarks: tuple[str, ...] = ()
    try:
        check_start(folders, wall, last, config.max_start_gap)
    except ClockGap as gap:
        remarks = (f"warning: a hub does not start: {gap}", f"hint: if the clock is right, {_ACCEPT} allows the start")
    data = {
        "state": "stopped",
        "last_hub_ts": Moment(last) if last else None,
        "wall_ts": Moment(wall),
        "trusted_ts": Moment(mark) if mark else None,
        "data_dir": str(data_dir),
    }
    return Result(data, remarks=remarks)


def _accept_stopped(data_dir: Path) -> Result:
    from plumbing.durable import Disk
    from veen.cli.hub import hub_process
    from veen.core import Unavailable
    from veen.hub.hub_time import write_mark
    from veen.storage.lock import lock_directory

    folders = hub_process.folders(data_dir)
    with lock_directory(folders.lock):
        last, wall = hub_process.last_hub_ts(data_dir), int(time.time())
        try:
            write_mark(Disk(), folders, wall)
        except OSError as error:
            raise Unavailable(f"cannot write {folders.clock}: {error.strerror}") from None
    data = {
        "state": "stopped",
        "last_hub_ts": Moment(last) if last else None,
        "trusted_ts": Moment(wall),
        "data_dir": str(data_dir),
    }
    behind = f"hint: the hub will start at the end of its log and run at half speed for {2 * (last - wall)} s"
    return Result(data, remarks=(behind,) if wall < last else ())
