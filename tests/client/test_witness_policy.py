"""Policy files: which witnesses count, and what is wrong with a file."""

from pathlib import Path

import pytest

from tests.witness.small_hub import SmallHub
from veen.client.trust import read_policy
from veen.core import Malformed, SigningKey, Unverified

KEYS = [SigningKey.generate() for _ in range(3)]
NAMED = "\n".join(f'w{at} = "{key.public_key.hex()}"' for at, key in enumerate(KEYS))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("signers", "holds"), [((0, 1), True), ((1, 2), True), ((0, 1, 2), True), ((2,), False)])
def test_two_of_three(tmp_path: Path, signers: tuple[int, ...], holds: bool) -> None:
    policy = read_policy(written(tmp_path, f"threshold = 2\n[witnesses]\n{NAMED}\n"))
    hub = SmallHub()
    signed = hub.checkpoint(3).witnessed(*(KEYS[at] for at in signers), SigningKey.generate())
    if holds:
        assert policy.check(signed, hub.identity) == tuple(f"w{at}" for at in signers)
    else:
        with pytest.raises(Unverified, match="cosigned by w2, but the policy requires 2 of 3 witnesses"):
            policy.check(signed, hub.identity)


def test_a_witness_that_signed_twice_counts_once(tmp_path: Path) -> None:
    policy = read_policy(written(tmp_path, f"threshold = 2\n[witnesses]\n{NAMED}\n"))
    hub = SmallHub()
    with pytest.raises(Unverified):
        policy.check(hub.checkpoint(3).witnessed(KEYS[0], KEYS[0]), hub.identity)


def test_keys_of_the_hub_do_not_count_in_a_policy(tmp_path: Path) -> None:
    hub = SmallHub()
    text = f'threshold = 1\n[witnesses]\nown = "{hub.key.public_key.hex()}"\nroot = "{hub.root.public_key.hex()}"\n'
    policy = read_policy(written(tmp_path, text))
    with pytest.raises(Unverified):
        policy.check(hub.checkpoint(3).witnessed(hub.key, hub.root), hub.identity)


def test_keys_of_the_hubs_that_a_hub_was_forked_from_do_not_count(tmp_path: Path) -> None:
    hub, origin = SmallHub(), SmallHub()
    policy = read_policy(written(tmp_path, f'threshold = 1\n[witnesses]\norigin = "{origin.key.public_key.hex()}"\n'))
    signed = hub.checkpoint(3).witnessed(origin.key)
    assert policy.check(signed, hub.identity) == ("origin",)
    with pytest.raises(Unverified):
        policy.check(signed, hub.identity, origin.identity)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "witnesses must be a table"),
        ("threshold = 1", "witnesses must be a table"),
        ("threshold = 1\n[witnesses]", "witnesses must be a table"),
        (f"[witnesses]\n{NAMED}", "threshold must be a number from 1 to 3"),
        (f"threshold = 0\n[witnesses]\n{NAMED}", "threshold must be"),
        (f"threshold = 4\n[witnesses]\n{NAMED}", "threshold must be"),
        (f"threshold = true\n[witnesses]\n{NAMED}", "threshold must be"),
        ('threshold = 1\n[witnesses]\na = "12"', "witnesses.a is not a public key"),
        ("threshold = 1\n[witnesses]\na = 12", "witnesses.a is not a public key"),
        (f"threshold = 1\nother = 2\n[witnesses]\n{NAMED}", "there is no setting 'other'"),
        (
            f'threshold = 1\n[witnesses]\n{NAMED}\nagain = "{KEYS[0].public_key.hex()}"',
            "two witnesses have the same key",
        ),
        ("threshold = [", "Invalid value"),
        ("\x00", "Invalid"),
    ],
)
def test_a_policy_that_is_wrong_is_rejected_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        read_policy(written(tmp_path, text))
