"""The public names of the client: a change here is a change for everyone who imports it."""

import subprocess
import sys

import pytest

import veen.client

KEYS = {
    "Busy",
    "CapBox",
    "Card",
    "ClientDir",
    "Cost",
    "Identity",
    "KeyBounds",
    "LabelState",
    "Moved",
    "Outbox",
    "Pending",
    "Prekey",
    "ReaderKey",
    "State",
    "StreamKey",
    "StreamKeys",
    "Writer",
    "WrongPassphrase",
    "export_identity",
    "import_identity",
}


def test_the_names_of_keys_and_state_are_these() -> None:
    assert set(veen.client.__all__) >= KEYS


def test_every_public_name_is_there() -> None:
    assert [name for name in veen.client.__all__ if not hasattr(veen.client, name)] == []


TALKING = {
    "BlockingClient",
    "Client",
    "Contradiction",
    "Draft",
    "Entry",
    "Evidence",
    "HubStatus",
    "Lie",
    "Patience",
    "Pin",
    "Proved",
    "Report",
    "Resynced",
    "Sender",
    "Sent",
    "Settled",
    "Undecided",
}


def test_the_names_of_talking_to_a_hub_are_these() -> None:
    assert set(veen.client.__all__) == KEYS | TALKING


def test_who_only_makes_keys_does_not_load_http() -> None:
    code = "import sys, veen.client; sys.exit('httpx' in sys.modules or 'veen.client.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_is_none_is_not_there() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        veen.client.__getattr__("Nothing")
