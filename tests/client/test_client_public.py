"""The public names of the client. A change here affects every importer."""

import subprocess
import sys

import pytest

import veen.client

KEYS_AND_STATE = {
    "Busy",
    "CapabilityStore",
    "Card",
    "ClientDir",
    "ClientIdentity",
    "ClientState",
    "Cost",
    "KeyBounds",
    "LabelState",
    "Outbox",
    "Pending",
    "Prekey",
    "ReaderKey",
    "StateConflict",
    "StreamKey",
    "StreamKeys",
    "WriterKey",
    "WrongPassphrase",
    "export_identity",
    "import_identity",
}
HUB_ACCESS = {
    "BlockingClient",
    "Client",
    "Contradiction",
    "Draft",
    "Entry",
    "Evidence",
    "EvidenceReport",
    "HubStatus",
    "Lie",
    "Pin",
    "Proved",
    "Resynced",
    "RetryPolicy",
    "Sender",
    "Sent",
    "Settled",
    "Undecided",
}


def test_the_public_names_are_these() -> None:
    assert set(veen.client.__all__) == KEYS_AND_STATE | HUB_ACCESS


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in veen.client.__all__ if not hasattr(veen.client, name)] == []


def test_keys_and_state_are_imported_without_http() -> None:
    code = "import sys, veen.client; sys.exit('httpx' in sys.modules or 'veen.client.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        veen.client.__getattr__("Nothing")
