"""`veen hub limits`: lower the limits of a running hub."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from plumbing.cli.command import Misuse, argument, command, group
from veen.cli.kit import values
from veen.cli.kit.common_options import HubUrl, JsonOption, LocalDir
from veen.cli.kit.result import Moment, Result

if TYPE_CHECKING:
    from veen.core import Limits

app = group("limits", "Lower the limits of a hub.")


@command(
    app,
    "lower",
    "veen hub limits lower max_body_bytes=4096 --data-dir hub",
    "veen hub limits lower max_cap_rate_per_sec=100 max_cap_rate_burst=500 --hub https://hub.example",
)
def lower(
    limit: Annotated[list[values.Setting], argument("NAME=NUMBER", "the new value", parser=values.setting)],
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    as_json: JsonOption = False,
) -> None:
    """Lower limits of a running hub, permanently.

    The hub logs the change on its control stream. It applies to entries after that second; earlier entries stay valid.
    A limit cannot be raised again. Those that decide where chunks end, and max_epoch_skew_sec, cannot change at all.

    It needs the token in VEEN_OPERATOR_TOKEN that the hub was started with.
    """
    from veen.cli.hub import hub_process
    from veen.cli.hub.hub_settings import operator_token
    from veen.cli.kit.exit_status import hinted
    from veen.core import Limits, Refused, strict_json, wire_json

    with hub_process.hub(hub, data_dir) as api:
        token = operator_token()
        before = wire_json.decode(Limits, strict_json.encode(api.status()["limits"]))
        after = changed(before, limit)
        try:
            receipt = api.lower_limits(after, token)
        except Refused as refused:
            if refused.code == "E.CONFLICT":
                raise hinted(refused, "veen hub status --json shows the current limits") from None
            raise
    names = dict.fromkeys(one.name for one in limit)
    data = {
        "url": api.url,
        **{name: getattr(after, name) for name in names},
        "hub_ts": Moment(receipt.hub_ts),
        "stream_seq": receipt.stream_seq,
    }
    Result(data).show(as_json)


def changed(before: "Limits", given: list[values.Setting]) -> "Limits":
    """Limits with some of them replaced. Raises `Misuse` unless all of these are lowered."""
    from veen.core import Malformed
    from veen.core.profile import LOWERABLE

    known = [kind.name for kind in before.LAYOUT.kinds]
    for one in given:
        if one.name not in known:
            raise Misuse(f"there is no limit {one.name!r}", f"these limits can be lowered: {', '.join(LOWERABLE)}")
    try:
        after = replace(before, **{one.name: one.number for one in given})
    except Malformed as error:
        raise Misuse(str(error), "limits can only be lowered, within their bounds") from None
    refusal = before.refusal(after)
    if refusal:
        raise Misuse(refusal, f"these limits can be lowered: {', '.join(LOWERABLE)}")
    return after
