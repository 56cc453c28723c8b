"""Phase 3: the capability that a service requires, its source, and the check of a token. 001, spec-5 §7.3.

A descriptor grants nothing (§8.3); a token does, once the hub has accepted it. The `details` of a service's auth policy
may name `issuer_service`, a service of the directory with the method `cap.issue.v1`. Otherwise the token comes from the
operator.

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
    """The source of the permission to use a service."""

    NONE = "none"  # no permission needed
    SERVICE = "service"  # a token from an issuance call to an admin service
    OPERATOR = "operator"  # a token from the operator, out of band
    OUTSIDE = "outside"  # not a capability: mutual TLS and the like


WITH_TOKEN = (CapabilityRoute.SERVICE, CapabilityRoute.OPERATOR)


@dataclass(frozen=True, slots=True)
class AuthorizationPlan:
    """The requirements of a service before it can be used."""

    route: CapabilityRoute
    required_caps: tuple[str, ...]
    stream_ids: tuple[bytes, ...]  # that the token must allow
    issuer: ServiceAdvertise | None = None
    operator: Operator | None = None


def written_streams(service: ServiceAdvertise) -> tuple[bytes, ...]:
    """The streams that a client writes to: the request stream if the service has methods, else all of them."""
    return service.stream_ids[:1] if service.methods else service.stream_ids


def auth_mode(service: ServiceAdvertise) -> str:
    """The auth mode of a service. Without a policy it is `cap_token` if the service requires capabilities."""
    if service.auth_policy is not None:
        return service.auth_policy.mode
    return "cap_token" if service.required_caps else "none"


def plan(service: ServiceAdvertise, services: Iterable[ServiceAdvertise] = ()) -> AuthorizationPlan:
    """The requirements of a service, given the services that are live in the directory."""
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
    """The call that requests a token from an admin service."""
    args: dict[str, cbor.Value] = {
        "caps": wanted.required_caps,
        "stream_ids": tuple(sorted(set(wanted.stream_ids))),
        "subject_pk": subject_pk,
    }
    return CallRequest(ISSUE_METHOD, cbor.encode(args if ttl is None else {**args, "ttl": ttl}), timeout_ms)


def issued(answered: Reply, wanted: AuthorizationPlan, subject_pk: bytes) -> CapToken:
    """The token of an issuance reply. Raises if there is none or it does not meet the plan."""
    if answered.error is not None:
        raise Unverified("issuance", f"the issuing service refused: {answered.error.code}")
    found = cbor.decode(answered.result or b"", "issuance")
    if not isinstance(found, bytes):
        raise Unverified("issuance", "the result is not a capability token")
    token = CapToken.decode(found)
    check_token(token, wanted, subject_pk)
    return token


def check_token(token: CapToken, wanted: AuthorizationPlan, subject_pk: bytes) -> None:
    """Raise unless a token is validly signed, is for this client and allows the streams of the plan."""
    token.verify()
    if token.subject_pk != subject_pk:
        raise Unverified("cap_token", "the token is for another client")
    missing = set(wanted.stream_ids) - set(token.allow.stream_ids)
    if missing:
        raise Unverified("cap_token", f"the token does not allow stream {min(missing).hex()}")


def _issuer_named(service: ServiceAdvertise) -> bytes | None:
    details = service.auth_policy.details if service.auth_policy else None
    found = None if details is None else cbor.decode(details, "details")
    named = found.get(ISSUER_KEY) if isinstance(found, Mapping) else None  # type: ignore[call-overload]
    return named if isinstance(named, bytes) else None
