"""What a hub says of itself: identity, profile, limits, time, health. Spec §3.2, §8.4, §12, §14."""

from veen.selftest.check import claim
from veen.selftest.hubfacts import REGISTRY
from veen.selftest.trial import Trial
from veen.selftest.verdict import Skipped, expect, expect_equal

_SLACK_SEC = 5


@claim("hub.status", "the hub says which it is, and by which profile, limits and rule of admission it works", "§12")
def status(trial: Trial) -> None:
    found, before = trial.status(), trial.facts
    expect_equal(found.hub_id, before.hub_id, "hub_id, asked for again,")
    expect_equal(found.profile, before.profile, "the profile, asked for again,")
    expect_equal(found.limits, before.limits, "the limits, asked for again,")
    expect_equal(found.admission, before.admission, "admission, asked for again,")


@claim("hub.profile", "profile_id is that of the profile the hub names", "§3.2")
def profile(trial: Trial) -> None:
    expect_equal(trial.facts.profile_id, trial.profile.profile_id(), "profile_id")


@claim("hub.limits", "no limit is above the protocol's", "§14, §14.1")
def limits(trial: Trial) -> None:
    for name, most in REGISTRY.items():
        expect(trial.facts.limits[name] <= most, f"{name} is {trial.facts.limits[name]}, above {most}")


@claim("hub.time", "the hub tells its time and its epoch, which is that time's, and neither goes back", "§3.2, §12")
def hub_time(trial: Trial) -> None:
    first, second = trial.status(), trial.status()
    expect(first.hub_ts <= second.hub_ts, f"hub_ts went back from {first.hub_ts} to {second.hub_ts}")
    for one in (first, second):
        expect_equal(one.epoch, one.profile.epoch(one.hub_ts), "epoch")
    if trial.may_write:
        stamped = trial.writer().send().receipt.hub_ts
        expect(stamped >= second.hub_ts, f"a receipt's hub_ts, {stamped}, is before the status's, {second.hub_ts}")
        now = trial.status().hub_ts
        expect(stamped <= now + _SLACK_SEC, f"a receipt's hub_ts, {stamped}, is ahead of the status's, {now}")


@claim("hub.identity", "every key of the hub is endorsed by the one before it, back to its hub_id", "§8.4")
def identity(trial: Trial) -> str:
    facts = trial.facts
    if facts.identity is None:
        raise Skipped("the status shows no identity record, so the hub's key is taken on its word")
    facts.verify_identity(facts.hub_id)
    active = facts.identity.signing_key_at(facts.hub_ts)
    expect_equal((facts.hub_pk, facts.key_id), (active.hub_pk, active.key_id), "the active key")
    return f"{len(facts.identity.hub_keys)} keys"


@claim("hub.pin", "it is the hub that was pinned", "§8.4")
def pin(trial: Trial) -> None:
    if trial.pin is None:
        raise Skipped("no pin was given")
    trial.facts.verify_identity(trial.pin)


@claim("hub.health", "the hub is alive, ready, and shows its metrics", "§12")
def health(trial: Trial) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        reply = trial.probe.get(path)
        expect(reply.status == 200, f"GET {path} answered {reply.status}")
    expect(b"# TYPE" in reply.body, "GET /metrics is not in Prometheus' text format")


CHECKS = (status, profile, limits, hub_time, identity, pin, health)
