"""The public names of the core: a change here is a change for everyone who imports it."""

import inspect
from types import ModuleType

import pytest

import veen.core

PUBLIC = [
    "Allow",
    "Bucket",
    "CapToken",
    "Checkpoint",
    "DhKey",
    "Fault",
    "HubIdentity",
    "HubKey",
    "IdentitySignature",
    "Leaf",
    "Limits",
    "Malformed",
    "Mmr",
    "MmrProof",
    "Msg",
    "Opened",
    "PayloadHdr",
    "Place",
    "Profile",
    "Rate",
    "Receipt",
    "Refused",
    "SealedAttachment",
    "Sealer",
    "SigningKey",
    "Step",
    "Unavailable",
    "Unverified",
    "VeenError",
    "admin",
    "admission",
    "attachments",
    "captoken",
    "cbor",
    "checkpoint",
    "ciphertext",
    "control",
    "envelopes",
    "hashing",
    "identity",
    "jsonform",
    "jsontext",
    "limits",
    "mmr",
    "msg",
    "naming",
    "powcookie",
    "proof",
    "rate",
    "receipt",
    "signing",
    "tooling",
    "upload",
]


def test_the_public_names_are_these() -> None:
    assert veen.core.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_is_there_and_is_a_module_or_a_class(name: str) -> None:
    found = getattr(veen.core, name)
    assert isinstance(found, ModuleType | type)


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_comes_from_the_core(name: str) -> None:
    found = getattr(veen.core, name)
    home = found.__name__ if isinstance(found, ModuleType) else found.__module__
    assert home.startswith("veen.core.")
    assert found.__name__.rpartition(".")[2] == name


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_says_what_it_is(name: str) -> None:
    found = getattr(veen.core, name)
    said = vars(found).get("__doc__")
    assert isinstance(said, str)
    # A dataclass without a docstring gets its signature as one, which says nothing.
    assert inspect.cleandoc(said)
    assert not said.startswith(f"{name}(")


def test_a_star_import_gives_the_public_names_and_no_others() -> None:
    space: dict[str, object] = {}
    exec("from veen.core import *", space)
    assert sorted(space.keys() - {"__builtins__"}) == PUBLIC
