"""Phase 3 of `veen connect`, and calls over a bound connection. Both contact the chosen hub."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from plumbing.cli.command import Misuse
from veen.cli import cap as caps
from veen.cli.discovery import connection_stream
from veen.cli.discovery.connect_phases import need_hub_key
from veen.cli.discovery.connection_stream import ConnectionSession, open_connections
from veen.cli.discovery.directory_view import answer_time
from veen.cli.kit import open_session, output, read_state, render_state
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.state_options import SendOptions
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

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CapOptions:
    """The options of `veen connect cap`."""

    token: str | None
    ask: bool
    ttl: int | None
    wait: int | None
    timeout: float
    directory: str


def get(options: SendOptions, name: str, cap_options: CapOptions) -> None:
    """Record the plan and, if there is a capability, present it to the chosen hub and record the hub's answer."""
    if cap_options.ask and cap_options.token is not None:
        raise Misuse("--ask and --token contradict each other", "give one of them")
    with open_connections(options) as session:
        state, _ = session.connection(name)
        plan, now = _plan(session, state, name, cap_options)
        planned = _planned(session, state, name, plan, now, cap_options)
        if plan.route not in connect.WITH_TOKEN or not (cap_options.ask or cap_options.token):
            _show_plan(session, planned, plan, name)
            return
        _need_trust(state, name)
        assert state.hub is not None
        authorized = _at_chosen(session, state.hub, lambda client: _authorize(client, session, name, plan, cap_options))

        async def make(client: Client, session: ConnectionSession) -> Authorized:
            return authorized

        _, sent = session.send(make)
        fixed: dict[str, output.Value] = {"connection": name, "auth_ref": authorized.auth_ref}
        ends = authorized.expires_at
        session.show_sent(sent, {**fixed, "expires_at": output.moment(ends)}, {**fixed, "expires_at": ends})


def _plan(
    session: ConnectionSession, state: ServiceConnection, name: str, cap_options: CapOptions
) -> tuple[AuthorizationPlan, int]:
    """Return what the service requires, from the current directory."""
    chosen = state.service
    if chosen is None:
        raise hinted(Unavailable(f"connection {name!r} has no service"), f"veen connect service {name} chooses one")

    async def work(client: Client) -> tuple[AuthorizationPlan, int]:
        read_state.need_reader_key(client.dir, cap_options.directory)
        async with StateView.of(client, cap_options.directory, DISCOVERY) as view, view.reading() as reading:
            now = await answer_time(view, reading, False)
            found = [one.descriptor for one in live_advertisements(dict(reading.live()), DescriptorKind.SERVICE, now)]
        services = [one for one in found if isinstance(one, ServiceAdvertise)]
        own = next((one for one in services if one.service_id == chosen.service_id), None)
        if own is None:
            raise hinted(
                Unavailable("the service is no longer advertised"), f"veen connect service {name} chooses another"
            )
        return connect.plan(own, services), now

    return session.run(work)


def _planned(
    session: ConnectionSession,
    state: ServiceConnection,
    name: str,
    plan: AuthorizationPlan,
    now: int,
    cap_options: CapOptions,
) -> Planned:
    """Record the plan if it changed. An unchanged plan is not sent again, because that would reset later phases."""
    issuer = plan.issuer.service_id if plan.issuer else None
    current = state.plan
    if (
        current is not None
        and (current.route, current.issuer_service) == (str(plan.route), issuer)
        and cap_options.wait is None
    ):
        return current
    made = Planned(name, str(plan.route), issuer, None if cap_options.wait is None else now + cap_options.wait)

    async def make(client: Client, session: ConnectionSession) -> Planned:
        return made

    session.send(make)
    return made


def _show_plan(session: ConnectionSession, planned: Planned, plan: AuthorizationPlan, name: str) -> None:
    operator = plan.operator
    next_step = {
        CapabilityRoute.NONE: f"veen connect bind {name}",
        CapabilityRoute.SERVICE: f"veen connect cap {name} --ask",
        CapabilityRoute.OPERATOR: f"veen connect cap {name} --token FILE, with a capability from the operator",
        CapabilityRoute.OUTSIDE: f"veen connect bind {name}, once the operator has authorized you by other means",
    }[plan.route]
    rows: dict[str, output.Value] = {
        "connection": name,
        "route": str(plan.route),
        "capabilities": ", ".join(plan.required_caps) or None,
        "issuer": planned.issuer_service,
        "operator": None if operator is None else render_state.plain_cell(operator.org),
        "contact": None if operator is None else render_state.plain_cell(operator.contact),
        "wait until": output.moment(planned.wait_until),
        "next": next_step,
    }
    data = {
        "connection": name,
        "route": str(plan.route),
        "required_caps": plan.required_caps,
        "stream_ids": plan.stream_ids,
        "issuer_service": planned.issuer_service,
        "operator": None if operator is None else {"org": operator.org, "contact": operator.contact},
        "wait_until": planned.wait_until,
        "next": next_step,
    }
    output.facts(rows, session.options.as_json, data)


def _need_trust(state: ServiceConnection, name: str) -> None:
    """Raise before any contact with a hub that is not trusted: it must not see the capability."""
    if state.hub is None or not state.hub.trusted:
        raise hinted(
            Refused("E.STATE", "the hub's key is not trusted"),
            f"veen connect hub {name} --trust HEX|PATH chooses a hub and trusts it",
        )


def _at_chosen(session: ConnectionSession, hub: HubChosen, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` with a client of the chosen hub, pinned to the hub id that was trusted."""
    options = session.options
    call = open_session.HubCall(hub.endpoint.url, options.client, options.passphrase_file, hub.hub_id.hex())

    async def run(client: Client) -> T:
        need_hub_key(client, hub)
        return await work(client)

    return call.run_with(session.folder, call.url(), run)


async def _authorize(
    client: Client, session: ConnectionSession, name: str, plan: AuthorizationPlan, cap_options: CapOptions
) -> Authorized:
    own = client.dir.writers.current().client_id
    tokens = (
        await _request_cap(client, plan, own, cap_options)
        if cap_options.token is None
        else caps.read(Path(cap_options.token))
    )
    token = next((one for one in tokens if one.subject_pk == own), tokens[0])
    connect.check_token(token, plan, own)
    answer = await client.authorize(token)
    client.dir.caps.add_all(cbor_sequence.encode(tokens))
    return Authorized(name, answer.auth_ref, answer.expires_at)


async def _request_cap(
    client: Client, plan: AuthorizationPlan, own: bytes, cap_options: CapOptions
) -> tuple[CapToken, ...]:
    """Request a capability from the issuing service, on the chosen hub."""
    if plan.issuer is None:
        raise hinted(
            Unavailable("the directory names no issuing service"),
            "ask the operator for a capability, then give --token",
        )
    request = connect.issuance(plan, own, ttl=cap_options.ttl, timeout_ms=int(cap_options.timeout * 1000))
    reply, _ = await connection_stream.call_over_stream(client, plan.issuer.stream_ids[0], request, cap_options.timeout)
    return (connect.issued(reply, plan, own),)


def call(options: SendOptions, name: str, method: str, args: str, timeout: float) -> None:
    """Call the service and show its answer."""
    value = cbor.encode(_value(args))
    with open_connections(options) as session:
        state, now = session.connection(name)
        try:
            way = connect.call_route(state, now)
            request = connect.call(state, method, value, now, timeout_ms=int(timeout * 1000))
        except NotBound as error:
            raise hinted(Refused("E.STATE", str(error)), f"veen connect status {name} shows its phase") from None
        assert state.hub is not None
        reply, at = _at_chosen(
            session,
            state.hub,
            lambda client: connection_stream.call_over_stream(client, way.stream_id, request, timeout),
        )
    if reply.error is not None:
        raise hinted(
            Refused(reply.error.code, reply.error.detail or "the service rejected the call"),
            "this error comes from the service, not from the hub",
        )
    found = cbor.decode(reply.result or b"")
    data = {"connection": name, "method": method, "result": render_state.plain_json(found), "hub_ts": at}
    output.facts({"result": render_state.plain_cell(found)}, options.as_json, data)


def _value(text: str) -> cbor.Value:
    """Parse the arguments of a call from JSON. CBOR on the wire has no fractions."""
    try:
        found: cbor.Value = json.loads(text, parse_float=_no_fraction, parse_constant=_no_fraction)
        cbor.encode(found)
    except ValueError as error:
        raise Misuse(f"the arguments cannot be sent: {error}", "give JSON: text, whole numbers, lists, maps") from None
    return found


def _no_fraction(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a whole number")
