"""`veen hub stream`: the streams that a hub with epochs accepts messages for."""

from typing import TYPE_CHECKING, Annotated

from plumbing.cli.command import argument, command, group
from veen.cli.kit import values
from veen.cli.kit.common_options import HubUrl, JsonOption, LocalDir
from veen.cli.kit.result import Moment, Result

if TYPE_CHECKING:
    from veen.cli.kit.hub_api import HubApi

app = group(
    "stream",
    """Register streams at a hub, and list them.

    A hub with epochs only accepts messages for registered streams, because it must find out which epoch a label belongs
    to. A capability registers its streams when it is authorized; other streams are registered here.
    """,
)


@command(
    app,
    "add",
    "veen hub stream add doors --data-dir hub",
    "veen hub stream add doors windows --hub https://hub.example",
)
def add(
    name: Annotated[list[str], argument("NAME", "names of streams, or their ids of 64 hex digits")],
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    as_json: JsonOption = False,
) -> None:
    """Register streams at a running hub, permanently.

    The hub logs each registration on its control stream. Registering a stream again changes nothing.

    It needs the token in VEEN_OPERATOR_TOKEN that the hub was started with.
    """
    from veen.cli.hub import hub_process
    from veen.cli.hub.hub_settings import operator_token
    from veen.core import naming
    from veen.core.envelopes import StreamRegistration, SubmitResponse

    token = operator_token()
    rows = []
    with hub_process.hub(hub, data_dir) as api:
        for one in dict.fromkeys(name):
            stream_id = values.hex_id(one) or naming.stream_id(one)
            made = api.post("/tooling/streams", StreamRegistration(stream_id), SubmitResponse, token).receipt
            rows.append({"stream": one, "stream_id": stream_id, "registered": Moment(made.hub_ts)})
        url = api.url
    Result({"url": url, "streams": rows}, rows="streams", columns=("stream", "stream_id", "registered")).show(as_json)


@command(
    app, "list", "veen hub stream list --data-dir hub", "veen hub stream list doors --hub https://hub.example --json"
)
def list_streams(
    name: Annotated[
        list[str] | None, argument("NAME", "names to look for: a hub knows ids only, which are hashes of names")
    ] = None,
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    as_json: JsonOption = False,
) -> None:
    """List the registered streams of a running hub.

    It needs the token in VEEN_OPERATOR_TOKEN that the hub was started with.
    """
    from veen.cli.hub import hub_process
    from veen.cli.hub.hub_settings import operator_token
    from veen.core import naming

    names = {naming.stream_id(one): one for one in name or ()}
    with hub_process.hub(hub, data_dir) as api:
        found = _registered(api, operator_token())
    shown = [one for one in found if not names or one in names]
    rows = [{"stream": names.get(one), "stream_id": one} for one in shown]
    missing = [names[one] for one in names.keys() - set(found)]
    remarks = tuple(f"stream {one} is not registered: veen hub stream add {one}" for one in sorted(missing))
    columns = ("stream", "stream_id") if names else ("stream_id",)
    Result({"streams": rows}, rows="streams", columns=columns, remarks=remarks).show(as_json)


def _registered(api: "HubApi", token: str) -> list[bytes]:
    from veen.core.envelopes import StreamList

    found: list[bytes] = []
    path = "/tooling/streams"
    while True:
        page = api.get(path, StreamList, token)
        found += page.stream_ids
        if page.next_after is None:
            return found
        path = f"/tooling/streams?after={page.next_after.hex()}"
