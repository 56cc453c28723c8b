"""Phase 3 as a command carries it out, and calls over a connection that is bound: both go to the chosen hub."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from plumbing.cli.command import Misuse
from veen.cli import cap as caps
from veen.cli.discovery import connection_stream
from veen.cli.discovery.connect_phases import need_hub_key
from veen.cli.discovery.connection_stream import Home, at_home
from veen.cli.discovery.directory_view import moment
from veen.cli.kit import open_session, output, read_state, render_state
from veen.cli.kit.exit_status import hinted
from veen.client import cbor_sequence
from veen.client.client import Client
from veen.core import CapToken, Refused, Unavailable, cbor
from veen.overlays import connect
from veen.overlays.connect import (
    AuthorizationPlan,
    Authorized,
    CapabilityRoute,
    HubChosen,
    NotBound,
    Planned,
    ServiceConnection,
)
from veen.overlays.discovery import DISCOVERY, DescriptorKind, ServiceAdvertise, live_advertisements
from veen.state.state_view import StateView

if TYPE_CHECKING:
    from veen.cli.kit.state_options import SendOptions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options of `veen connect cap` say."""

    token: str | None
    ask: bool
    ttl: int | None
    wait: int | None
    timeout: float
    directory: str


def get(asked: "SendOptions", name: str, wanted: Wanted) -> None:
    """Plan, and where there is a token, show it to the chosen hub and write down its answer."""
    if wanted.ask and wanted.token is not None:
        raise Misuse("--ask and --token are two ways to the same", "give one of them")
    with at_home(asked) as home:
        state, _ = home.connection(name)
        plan, now = _plan(home, state, name, wanted)
        planned = _planned(home, state, name, plan, now, wanted)
        if plan.route not in connect.connect_plan.WITH_TOKEN or not (wanted.ask or wanted.token):
            _tell_plan(home, planned, plan, name)
            return
        _need_trust(state, name)
        assert state.hub is not None
        authorized = _at_chosen(home, state.hub, lambda client: _authorize(client, home, name, plan, wanted))

        async def make(client: Client, home: Home) -> Authorized:
            return authorized

        _, said = home.say(make)
        fixed: dict[str, output.Value] = {"connection": name, "auth_ref": authorized.auth_ref}
        ends = authorized.expires_at
        home.tell(said, {**fixed, "expires_at": output.moment(ends)}, {**fixed, "expires_at": ends})


def _plan(home: Home, state: ServiceConnection, name: str, wanted: Wanted) -> tuple[AuthorizationPlan, int]:
    """What the service asks for, by what the directory says of it now."""
    chosen = state.service
    if chosen is None:
        raise hinted(Unavailable(f"connection {name!r} has no service yet"), f"veen connect service {name} chooses one")

    async def work(client: Client) -> tuple[AuthorizationPlan, int]:
        read_state.need_reader_key(client.dir, wanted.directory)
        async with StateView.of(client, wanted.directory, DISCOVERY) as view, view.reading() as reading:
            now = await moment(view, reading, False)
            found = [one.descriptor for one in live_advertisements(dict(reading.live()), DescriptorKind.SERVICE, now)]
        services = [one for one in found if isinstance(one, ServiceAdvertise)]
        own = next((one for one in services if one.service_id == chosen.service_id), None)
        if own is None:
            raise hinted(
                Unavailable("the service is not advertised any more"), f"veen connect service {name} chooses another"
            )
        return connect.plan(own, services), now

    return home.run(work)


def _planned(
    home: Home, state: ServiceConnection, name: str, plan: AuthorizationPlan, now: int, wanted: Wanted
) -> Planned:
    """The plan as it is written down: again only where it is another one, since planning anew forgets what follows."""
    issuer = plan.issuer.service_id if plan.issuer else None
    kept = state.plan
    if kept is not None and (kept.route, kept.issuer_service) == (str(plan.route), issuer) and wanted.wait is None:
        return kept
    made = Planned(name, str(plan.route), issuer, None if wanted.wait is None else now + wanted.wait)

    async def make(client: Client, home: Home) -> Planned:
        return made

    home.say(make)
    return made


def _tell_plan(home: Home, planned: Planned, plan: AuthorizationPlan, name: str) -> None:
    whom = plan.operator
    next_step = {
        CapabilityRoute.NONE: f"veen connect bind {name}",
        CapabilityRoute.SERVICE: f"veen connect cap {name} --ask",
        CapabilityRoute.OPERATOR: f"veen connect cap {name} --token FILE, with a token from the operator",
        CapabilityRoute.OUTSIDE: f"veen connect bind {name}, once the operator lets you in by other means",
    }[plan.route]
    rows: dict[str, output.Value] = {
        "connection": name,
        "route": str(plan.route),
        "capabilities": ", ".join(plan.required_caps) or None,
        "issuer": planned.issuer_service,
        "operator": None if whom is None else render_state.plain_cell(whom.org),
        "contact": None if whom is None else render_state.plain_cell(whom.contact),
        "wait until": output.moment(planned.wait_until),
        "next": next_step,
    }
    data = {
        "connection": name,
        "route": str(plan.route),
        "required_caps": plan.required_caps,
        "stream_ids": plan.stream_ids,
        "issuer_service": planned.issuer_service,
        "operator": None if whom is None else {"org": whom.org, "contact": whom.contact},
        "wait_until": planned.wait_until,
        "next": next_step,
    }
    output.facts(rows, home.asked.as_json, data)


def _need_trust(state: ServiceConnection, name: str) -> None:
    """Before the hub is met at all: a token is shown to nobody whose key is not trusted."""
    if state.hub is None or not state.hub.trusted:
        raise hinted(
            Refused("E.STATE", "the hub's key is not trusted yet"),
            f"veen connect hub {name} --trust HEX|PATH says that you mean this one",
        )


def _at_chosen(home: Home, hub: HubChosen, work: Callable[[Client], Awaitable[T]]) -> T:
    """Do something at the hub that was chosen, held to the id under which it was trusted."""
    asked = home.asked
    call = open_session.HubCall(hub.endpoint.url, asked.client, asked.passphrase_file, hub.hub_id.hex())

    async def met(client: Client) -> T:
        need_hub_key(client, hub)
        return await work(client)

    return call.run_with(home.folder, call.url(), met)


async def _authorize(client: Client, home: Home, name: str, plan: AuthorizationPlan, wanted: Wanted) -> Authorized:
    own = client.dir.writers.current().client_id
    tokens = await _issued(client, plan, own, wanted) if wanted.token is None else caps.read(Path(wanted.token))
    token = next((one for one in tokens if one.subject_pk == own), tokens[0])
    connect.check_token(token, plan, own)
    answer = await client.authorize(token)
    client.dir.caps.add_all(cbor_sequence.encode(tokens))
    return Authorized(name, answer.auth_ref, answer.expires_at)


async def _issued(client: Client, plan: AuthorizationPlan, own: bytes, wanted: Wanted) -> tuple[CapToken, ...]:
    """Ask the issuing service, on the chosen hub."""
    if plan.issuer is None:
        raise hinted(Unavailable("the directory names no service that issues"), "ask the operator, then give --token")
    request = connect.issuance(plan, own, ttl=wanted.ttl, timeout_ms=int(wanted.timeout * 1000))
    reply, _ = await connection_stream.call_over_stream(client, plan.issuer.stream_ids[0], request, wanted.timeout)
    return (connect.issued(reply, plan, own),)


def call(asked: "SendOptions", name: str, method: str, args: str, timeout: float) -> None:
    """Call the service, and show what it answers."""
    value = cbor.encode(_value(args))
    with at_home(asked) as home:
        state, now = home.connection(name)
        try:
            way = connect.call_route(state, now)
            request = connect.call(state, method, value, now, timeout_ms=int(timeout * 1000))
        except NotBound as error:
            raise hinted(Refused("E.STATE", str(error)), f"veen connect status {name} shows how far it is") from None
        assert state.hub is not None
        reply, at = _at_chosen(
            home, state.hub, lambda client: connection_stream.call_over_stream(client, way.stream_id, request, timeout)
        )
    if reply.error is not None:
        raise hinted(Refused(reply.error.code, reply.error.detail or "the service refused"), "the service says so")
    found = cbor.decode(reply.result or b"")
    data = {"connection": name, "method": method, "result": render_state.plain_json(found), "hub_ts": at}
    output.facts({"result": render_state.plain_cell(found)}, asked.as_json, data)


def _value(text: str) -> cbor.Value:
    """JSON as the one value a call takes. Fractions have no form there."""
    try:
        found: cbor.Value = json.loads(text, parse_float=_no_fraction, parse_constant=_no_fraction)
        cbor.encode(found)
    except ValueError as error:
        raise Misuse(f"the arguments cannot be sent: {error}", "give JSON: text, whole numbers, lists, maps") from None
    return found


def _no_fraction(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a whole number")
