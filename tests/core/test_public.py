"""The public names of the core. A change here affects every importer."""

import inspect
from types import ModuleType

import pytest

import veen.core

PUBLIC = [
    "Allow",
    "Bucket",
    "CapPresentation",
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
    "ProofStep",
    "Rate",
    "Receipt",
    "Refused",
    "SealedAttachment",
    "Sealer",
    "SigningKey",
    "Unavailable",
    "Unverified",
    "VeenError",
    "admin",
    "admission",
    "attachment",
    "cap_token",
    "cbor",
    "checkpoint",
    "ciphertext",
    "control_stream",
    "envelopes",
    "hashing",
    "hub_identity",
    "limits",
    "mmr",
    "msg",
    "naming",
    "proof",
    "proof_of_work",
    "receipt",
    "signing",
    "strict_json",
    "wire_json",
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
    assert home.startswith(("veen.core.", "plumbing."))
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
