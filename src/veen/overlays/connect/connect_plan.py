"""Phase 3: which capability a service asks for, where it comes from, and whether a token is the one. 001, spec-5 §7.3.

A descriptor grants nothing (§8.3): the token does, once the hub has taken it. Where a `cap_token` comes from is the
service's own affair. `details` of its policy may name `issuer_service`, a service of the directory with the method
`cap.issue.v1`; without it, the operator is to be asked.

    cap.issue.v1   args {"caps": [text], "stream_ids": [bstr(32)], "subject_pk": bstr(32), "ttl": uint?}
                   result: the cap_token as a byte string
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from veen.core import CapToken, Unverified, cbor
from veen.overlays.discovery import Operator, ServiceAdvertise
from veen.overlays.rpc import CallRequest, Reply

ISSUE_METHOD = "cap.issue.v1"
ISSUER_KEY = "issuer_service"


class CapabilityRoute(StrEnum):
    """Where leave to use a service comes from."""

    NONE = "none"  # none is needed
    SERVICE = "service"  # an issuance call to an admin service
    OPERATOR = "operator"  # a token from the operator, out of band
    OUTSIDE = "outside"  # not a matter of capabilities: mutual TLS and the like


WITH_TOKEN = (CapabilityRoute.SERVICE, CapabilityRoute.OPERATOR)


@dataclass(frozen=True, slots=True)
class AuthorizationPlan:
    """What has to be had before a service can be used."""

    route: CapabilityRoute
    required_caps: tuple[str, ...]
    stream_ids: tuple[bytes, ...]  # which the token must allow
    issuer: ServiceAdvertise | None = None
    operator: Operator | None = None


def written_streams(service: ServiceAdvertise) -> tuple[bytes, ...]:
    """The streams a client of the service writes to: of one that is called, that of the requests; else all of them."""
    return service.stream_ids[:1] if service.methods else service.stream_ids


def auth_mode(service: ServiceAdvertise) -> str:
    """How a service lets people in. Without a policy, a service that requires capabilities takes tokens."""
    if service.auth_policy is not None:
        return service.auth_policy.mode
    return "cap_token" if service.required_caps else "none"


def plan(service: ServiceAdvertise, services: Iterable[ServiceAdvertise] = ()) -> AuthorizationPlan:
    """What a service asks for, given the services that are to be found now."""
    wanted = (service.required_caps, written_streams(service))
    match auth_mode(service):
        case "none":
            return AuthorizationPlan(CapabilityRoute.NONE, *wanted)
        case "cap_token":
            named = _issuer_named(service)
            issuer = next((one for one in services if one.service_id == named and ISSUE_METHOD in one.methods), None)
            if issuer is not None and issuer.stream_ids:
                return AuthorizationPlan(CapabilityRoute.SERVICE, *wanted, issuer, service.operator)
            return AuthorizationPlan(CapabilityRoute.OPERATOR, *wanted, None, service.operator)
    return AuthorizationPlan(CapabilityRoute.OUTSIDE, *wanted, None, service.operator)


def issuance(
    wanted: AuthorizationPlan, subject_pk: bytes, *, ttl: int | None = None, timeout_ms: int | None = None
) -> CallRequest:
    """The call that asks an admin service for a token."""
    args: dict[str, cbor.Value] = {
        "caps": wanted.required_caps,
        "stream_ids": tuple(sorted(set(wanted.stream_ids))),
        "subject_pk": subject_pk,
    }
    return CallRequest(ISSUE_METHOD, cbor.encode(args if ttl is None else {**args, "ttl": ttl}), timeout_ms)


def issued(answered: Reply, wanted: AuthorizationPlan, subject_pk: bytes) -> CapToken:
    """The token of an issuance call. Raises where there is none, or it is not what was asked for."""
    if answered.error is not None:
        raise Unverified("issuance", f"it was refused: {answered.error.code}")
    found = cbor.decode(answered.result or b"", "issuance")
    if not isinstance(found, bytes):
        raise Unverified("issuance", "the result is no token")
    token = CapToken.decode(found)
    check_token(token, wanted, subject_pk)
    return token


def check_token(token: CapToken, wanted: AuthorizationPlan, subject_pk: bytes) -> None:
    """Raise unless a token is for this client and allows what the plan needs. Its signatures must hold too."""
    token.verify()
    if token.subject_pk != subject_pk:
        raise Unverified("cap_token", "it is for another client")
    missing = set(wanted.stream_ids) - set(token.allow.stream_ids)
    if missing:
        raise Unverified("cap_token", f"it does not allow stream {min(missing).hex()}")


def _issuer_named(service: ServiceAdvertise) -> bytes | None:
    details = service.auth_policy.details if service.auth_policy else None
    found = None if details is None else cbor.decode(details, "details")
    named = found.get(ISSUER_KEY) if isinstance(found, Mapping) else None  # type: ignore[call-overload]
    return named if isinstance(named, bytes) else None
