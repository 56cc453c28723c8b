"""The lanes that a node's settings ask for. One that cannot be had says why, and the others run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from veil.encryption.object_signature import SigningKey
from veil.lanes import Certificate, Endpoint, Lane, LinkLane, Unavailable
from veil.lanes.authenticated_lane import Secured
from veil.lanes.file_lane import FileLane
from veil.lanes.quic import QuicLane
from veil.lanes.tls_lane import TlsLane
from veil.lanes.tor import TorLane
from veil.lanes.webrtc import CarriedSignalling, Carry, EitherSignalling, FolderSignalling, WebRtcLane
from veil.lanes.websocket_lane import WebSocketLane
from veil.node import LaneClass, LaneSpec
from veil.runtime.node_settings import Settings, host_port
from veil.veil_errors import VeilError

# Which lanes carry most of the traffic. Files are all that some nodes have, and nobody can ask them for more.
CLASSES = {
    "quic": LaneClass.FAST,
    "tls": LaneClass.FAST,
    "webrtc": LaneClass.FAST,
    "file": LaneClass.FAST,
    "wss": LaneClass.FALLBACK,
    "tor": LaneClass.FALLBACK,
}
SPECS = tuple(LaneSpec(name, klass) for name, klass in CLASSES.items())


@dataclass(slots=True)
class Lanes:
    """The lanes there are, and why others are not. What peers say about lanes goes to `carried`."""

    carried: CarriedSignalling
    running: dict[str, Lane] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(endpoint for lane in self.running.values() for endpoint in lane.endpoints)


def make(
    settings: Settings, certificate: Certificate, key: SigningKey, carry: Carry, settle: Callable[[], None]
) -> Lanes:
    """All lanes, listening where they are told to and ready to dial. `settle` puts on disk what was taken in."""
    carried = CarriedSignalling(carry)
    lanes = Lanes(carried=carried)
    for name in CLASSES:
        listen = next(iter(_of(settings.listen, name)), None)
        announce = _of(settings.announce, name)
        try:
            if name == "file":
                lanes.running[name] = FileLane(key, Path(listen.path) if listen else None, settle)
            elif name == "webrtc":
                lanes.running[name] = Secured(_webrtc(settings, key, listen, carried), key)
            else:
                lanes.running[name] = Secured(_sockets(name, settings, certificate, listen, announce), key)
        except VeilError as error:
            lanes.absent[name] = error.reason
    return lanes


def _of(texts: tuple[str, ...], name: str) -> tuple[Endpoint, ...]:
    return tuple(endpoint for endpoint in map(Endpoint.parse, texts) if endpoint.scheme == name)


def _sockets(
    name: str, settings: Settings, certificate: Certificate, listen: Endpoint | None, announce: tuple[Endpoint, ...]
) -> LinkLane:
    match name:
        case "quic":
            return QuicLane(certificate, listen, announce)
        case "wss":
            return WebSocketLane(certificate, listen, announce)
        case "tls":
            return TlsLane(certificate, listen, announce)
    if not settings.proxy:
        raise Unavailable("the tor lane", "no proxy is set: veil node set --proxy 127.0.0.1:9050")
    return TorLane(certificate, host_port(settings.proxy), listen, announce, isolate=True)


def _webrtc(settings: Settings, key: SigningKey, listen: Endpoint | None, carried: CarriedSignalling) -> LinkLane:
    """Offers go through a folder where one is named, over other lanes otherwise; both may be dialled."""
    folder = Path(listen.path) if listen and listen.path else None
    signalling = EitherSignalling(FolderSignalling(key.public_key, folder), carried)
    return WebRtcLane(signalling, (listen,) if listen else (), settings.stun)
