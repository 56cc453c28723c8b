"""`veen context`: contexts are private to the user, and options override them."""

import json
import stat
from pathlib import Path

import pytest

from tests.cli.runner import Veen

URL = "http://127.0.0.1:37411"


def contexts_file(veen: Veen) -> Path:
    return veen.home / "config" / "veen" / "contexts.json"


def test_the_first_context_becomes_the_current_one(veen: Veen) -> None:
    ran = veen.done("context", "add", "home", "--hub", URL, "--stream", "doors", "--json")
    assert ran.json() == {
        "name": "home",
        "used": True,
        "hub": URL,
        "client": None,
        "stream": "doors",
        "cap": None,
        "policy": None,
        "pin": None,
        "ca": None,
        "tls_cert": None,
        "tls_key": None,
    }
    assert veen.done("context", "show", "--json").json()["name"] == "home"


def test_a_second_context_is_not_current_until_it_is_chosen(veen: Veen) -> None:
    veen.done("context", "add", "a", "--hub", URL)
    added = veen.done("context", "add", "b", "--hub", URL, "--json")
    assert added.json()["used"] is False
    assert added.err == "veen: context a stays current; veen context use b changes that\n"
    veen.done("context", "use", "b")
    rows = veen.done("context", "list", "--json").json()
    assert [(row["name"], row["used"]) for row in rows] == [("a", False), ("b", True)]


def test_a_context_can_be_added_as_the_current_one(veen: Veen) -> None:
    veen.done("context", "add", "a", "--hub", URL)
    added = veen.done("context", "add", "b", "--hub", URL, "--use", "--json")
    assert added.json()["used"] is True
    assert added.err == ""
    assert veen.done("context", "show", "--json").json()["name"] == "b"


@pytest.mark.parametrize("command", [["add", "a", "--hub", URL, "--use"], ["use", "a"]])
def test_a_remark_says_that_the_environment_names_another_context(command: list[str], veen: Veen) -> None:
    veen.done("context", "add", "a", "--hub", URL)
    ran = veen.done("context", *command, "--json", env={"VEEN_CONTEXT": "b"})
    assert ran.json()["used"] is False
    assert "veen: context b stays current, because VEEN_CONTEXT names it\n" in ran.err


def test_adding_again_replaces(veen: Veen) -> None:
    assert veen.done("context", "add", "a", "--hub", URL, "--stream", "doors").err == ""
    again = veen.done("context", "add", "a", "--hub", "https://hub.example")
    assert again.err == "veen: replaced context a\n"
    assert veen.done("context", "show", "a", "--json").json()["stream"] is None


def test_paths_are_stored_as_absolute_paths(veen: Veen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shown = veen.done("context", "add", "a", "--client", "alice", "--cap", "x.cap", "--json").json()
    assert shown["client"] == str(tmp_path / "alice")
    assert shown["cap"] == str(tmp_path / "x.cap")


def test_removing_the_current_context_leaves_none_current(veen: Veen) -> None:
    veen.done("context", "add", "a", "--hub", URL)
    veen.done("context", "remove", "a")
    assert veen.done("context", "list", "--json").json() == []
    assert veen("context", "show").error == "there is no current context"


def test_an_empty_list_says_how_to_begin(veen: Veen) -> None:
    ran = veen.done("context", "list")
    assert ran.out == ""
    assert ran.err == "veen: there are no contexts yet: veen context add NAME --hub URL\n"


def test_the_file_is_private_to_the_user(veen: Veen) -> None:
    veen.done("context", "add", "a", "--hub", URL)
    assert stat.S_IMODE(contexts_file(veen).stat().st_mode) == 0o600
    assert stat.S_IMODE(contexts_file(veen).parent.stat().st_mode) == 0o700
    assert [path.name for path in contexts_file(veen).parent.iterdir()] == ["contexts.json"]


@pytest.mark.parametrize("command", ["use", "show", "remove"])
def test_an_unknown_context_is_an_error_that_lists_the_known_ones(command: str, veen: Veen) -> None:
    veen.done("context", "add", "a", "--hub", URL)
    ran = veen("context", command, "b")
    assert ran.status == 2
    assert ran.error == "there is no context 'b'"
    assert "veen: hint: known contexts: a\n" in ran.err


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "-x" * 40, "é"])
def test_a_name_with_other_characters_is_rejected(name: str, veen: Veen) -> None:
    ran = veen("context", "add", "--hub", URL, "--", name)
    assert ran.status == 2
    assert not contexts_file(veen).exists()


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://x:port", "http://x/path", "http://u:p@x", "http://x?y", "", "http://x:99999"]
)
def test_an_invalid_hub_url_is_rejected(url: str, veen: Veen) -> None:
    ran = veen("context", "add", "a", "--hub", url)
    assert ran.status == 2
    assert ran.error.startswith("invalid value for '--hub': ")


BROKEN = [
    "",
    "nonsense",
    "[]",
    "{}",
    '{"current": null, "contexts": []}',
    '{"current": "x", "contexts": {}}',
    '{"current": null, "contexts": {"a": []}}',
    '{"current": null, "contexts": {"a": {"hub": 1}}}',
    '{"current": null, "contexts": {"a": {"secret": "x"}}}',
    '{"current": null, "contexts": {}, "more": 1}',
    "\ufffd" * 3,
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_damaged_file_is_named_and_not_changed(text: str, veen: Veen) -> None:
    contexts_file(veen).parent.mkdir(parents=True)
    contexts_file(veen).write_text(text)
    for arguments in (["list"], ["add", "a", "--hub", URL], ["use", "a"]):
        ran = veen("context", *arguments)
        assert ran.status == 3
        assert ran.error.startswith(f"{contexts_file(veen)}: not a contexts file: ")
    assert contexts_file(veen).read_text() == text


def test_a_file_that_cannot_be_read_is_named(veen: Veen) -> None:
    contexts_file(veen).mkdir(parents=True)
    ran = veen("context", "list")
    assert ran.status == 6
    assert f"{contexts_file(veen)} cannot be read" in ran.error


def hub_asked(veen: Veen, *arguments: str, **env: str) -> str:
    """The URL that a command uses, taken from its error: no hub listens there."""
    ran = veen("hub", "health", *arguments, env=env)
    assert ran.status == 6
    return ran.error.split()[4].rstrip(":")


def test_an_option_overrides_the_environment_and_the_environment_the_context(veen: Veen) -> None:
    for number, name in enumerate(("one", "two"), 1):
        veen.done("context", "add", name, "--hub", f"http://127.0.0.1:{number}")
    assert hub_asked(veen) == "http://127.0.0.1:1"
    assert hub_asked(veen, VEEN_CONTEXT="two") == "http://127.0.0.1:2"
    assert hub_asked(veen, VEEN_CONTEXT="two", VEEN_HUB="http://127.0.0.1:3") == "http://127.0.0.1:3"
    assert hub_asked(veen, "--hub", "http://127.0.0.1:4", VEEN_HUB="http://127.0.0.1:3") == "http://127.0.0.1:4"


def test_an_unknown_context_in_the_environment_is_an_error_not_the_default(veen: Veen) -> None:
    veen.done("context", "add", "one", "--hub", URL)
    unknown = {"VEEN_CONTEXT": "nine"}
    assert veen("hub", "health", env=unknown).error == "there is no context 'nine'"
    assert veen("context", "show", env=unknown).error == "there is no context 'nine'"
    assert veen.done("context", "list", env=unknown).out.startswith("one\tno\t")
    assert veen.done("context", "show", "one", env=unknown).facts()["hub"] == URL


def test_without_a_hub_the_hint_lists_the_ways_to_name_one(veen: Veen) -> None:
    ran = veen("hub", "health")
    assert ran.status == 2
    assert ran.error == "missing --hub URL"
    assert "VEEN_HUB" in ran.err
    assert "veen context add" in ran.err


def test_the_file_is_json_that_people_can_read(veen: Veen) -> None:
    veen.done("context", "add", "a", "--hub", URL)
    assert json.loads(contexts_file(veen).read_text()) == {"current": "a", "contexts": {"a": {"hub": URL}}}
