"""The public names of VEIL: a change here is a change for everyone who imports it."""

import veil

PUBLIC = [
    "Address",
    "Batcher",
    "Channel",
    "DeliveryKey",
    "Epochs",
    "ErasureMode",
    "Feed",
    "Flags",
    "Group",
    "GroupChannel",
    "GroupSecret",
    "Inbox",
    "Mailbox",
    "Malformed",
    "NATIVE",
    "Namespace",
    "NamespacePolicy",
    "ObjectV1",
    "Opened",
    "Published",
    "Reassembled",
    "Reassembly",
    "Received",
    "Recipient",
    "Refused",
    "Shape",
    "ShardSet",
    "ShardV1",
    "SharedKey",
    "SigningKey",
    "Unavailable",
    "Unverified",
    "VeilError",
    "batch_payload",
    "open_object",
    "profiles",
    "publish",
    "publish_feed",
    "receive",
    "send_group",
    "send_private",
    "tags",
]


def test_the_public_names_are_exactly_these() -> None:
    assert veil.__all__ == PUBLIC


def test_each_public_name_has_a_docstring() -> None:
    for name in PUBLIC:
        doc = getattr(veil, name).__doc__
        assert doc, name
        # A dataclass without a docstring gets its signature as one.
        assert not doc.startswith(f"{name}("), name


def test_a_star_import_gives_the_public_names_and_no_others() -> None:
    space: dict[str, object] = {}
    exec("from veil import *", space)
    assert sorted(space.keys() - {"__builtins__"}) == PUBLIC
