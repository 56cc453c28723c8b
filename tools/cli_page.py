"""Writes `docs/cli.md` from the commands: every command with its options and examples.

python -m tools.cli_page            write the page
python -m tools.cli_page --check    fail if the page on disk is out of date
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from plumbing.cli.help_text import Manual, is_group, manual_of
from tools.error_page import table
from veen.cli.app import app
from veen.cli.hub import hub_settings
from veen.cli.kit import exit_status
from veen.core import Limits
from veen.core.cbor import Uint

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """\
# The command line

`python -m tools.cli_page` generates this page from the commands. Do not edit it by hand.

Results go to standard output: tables on a terminal, tab-separated lines in a pipe, and one JSON document with `--json`
(one per line if the output has no end). Everything else goes to standard error, as `veen: error: …` followed by
`veen: hint: …`. `NO_COLOR` disables colours. If the locale is C or the terminal supports only ASCII, help, messages and
terminal output use ASCII replacements for other characters.

A duration is a number of seconds, or a number with the unit s, m, h or d: `90`, `1.5h`, `7d`.

A context stores options for daily use. `--hub` and `--client` come from the command line, else from `VEEN_HUB` and
`VEEN_CLIENT`, else from the context in `VEEN_CONTEXT`, else from the context last chosen with `veen context use`;
`--stream` and `--cap` come from the command line or the context.

`veen --install-completion` installs shell completion of commands, options, contexts and error codes. `veen-cli` is
`veen`; `veen-hub` is `veen hub`, and with options alone `veen hub start --foreground`, for containers;
`veen-selftest` is `veen selftest`.

The first time a client contacts a hub, it needs `--pin` or `--trust-on-first-use`; after that it knows the hub. The
passphrase of its keys comes from `--passphrase-file` or `VEEN_PASSPHRASE_FILE`, else from `VEEN_PASSPHRASE`, else from
a prompt. No option takes the passphrase itself, because other users can read command lines.

## Exit statuses
"""

STATUSES = [(0, "success"), (1, "an internal error of this program, with a traceback")]
FINDINGS = [
    (exit_status.REPAIRABLE_STATUS, "`veen fsck` found damage that `--repair` can correct from the log"),
    (exit_status.DAMAGED_STATUS, "`veen fsck` found damage to the log or to data that verifies it"),
    (exit_status.KEYLESS_STATUS, "`veen fsck` found no damage, but a secret key that a hub needs is missing"),
    (exit_status.MISSED_STATUS, "`veen bench` measured less than was promised"),
    (
        exit_status.FAILED_STATUS,
        "`veen selftest` found a claim that fails; two hubs of a `veen bridge` disagree",
    ),
    (
        exit_status.CONTRADICTED_STATUS,
        "`veen evidence verify` verified the file, and it shows a contradiction of the hub",
    ),
    (exit_status.VIOLATED_STATUS, "`veen op check` found an operation that violates a rule of its profile"),
]
SIGNALS = [(130, "interrupted with ctrl-c"), (141, "the reader of the output closed the pipe")]

LIMITS = """
## Limits of a hub

Fixed when the data directory is created: `veen hub init --limit NAME=NUMBER` sets one.
"""

SETTINGS = """
## Settings of a hub

`veen hub start --config FILE` reads settings from a file; options override it.

```toml
{settings}```

## Commands
"""


def page() -> str:
    """The expected content of the page."""
    pages = list(manuals())
    limits = [(f"`{kind.name}`", default(kind), kind.least, kind.most) for kind in limit_kinds()]
    return "\n".join(
        [
            HEAD,
            *table(("status", "meaning"), statuses()),
            LIMITS,
            *table(("limit", "default", "least", "most"), limits),
            SETTINGS.format(settings=hub_settings.EXAMPLE),
            *table(
                ("command", "what it does"), [(f"[`{one.path}`](#{_anchor(one)})", one.summary) for one in pages[1:]]
            ),
            "",
            *(line for one in pages for line in _section(one)),
        ]
    )


def statuses() -> list[tuple[int, str]]:
    """Every exit status with its meanings."""
    meanings: dict[int, list[str]] = {}
    for status, meaning in [*STATUSES, *exit_status.STATUS.values(), *FINDINGS, *SIGNALS]:
        meanings.setdefault(status, []).append(meaning)
    return [(status, "; or ".join(meanings[status])) for status in sorted(meanings)]


def limit_kinds() -> list[Uint]:
    return [kind for kind in Limits.LAYOUT.kinds if isinstance(kind, Uint)]


def default(kind: Uint) -> int | str:
    found: int | None = getattr(Limits(), kind.name)
    return "none" if found is None else found


def manuals() -> Iterator[Manual]:
    """The manual of every command, each group before its commands."""
    yield from _walk(get_command(app), None, "veen")


def _walk(command: Any, parent: typer.Context | None, name: str) -> Iterator[Manual]:
    ctx = typer.Context(command, parent=parent, info_name=name)
    yield manual_of(command, ctx)
    if is_group(command):
        for under in command.list_commands(ctx):
            yield from _walk(command.get_command(ctx, under), ctx, under)


def _anchor(one: Manual) -> str:
    return one.path.replace(" ", "-")


def _section(one: Manual) -> Iterator[str]:
    yield f"### {one.path}\n"
    yield f"{one.summary[:1].upper()}{one.summary[1:]}.\n"
    if one.text:
        yield f"{one.text}\n"
    yield f"```\n{one.usage}\n```\n"
    rows = [row for row in (*one.arguments, *one.options) if row.name != "--help"]
    if rows:
        yield from table(("option", ""), [(f"`{_cell(row.name)}`", _cell(row.description)) for row in rows])
        yield ""
    if one.examples:
        yield "\n".join(["```sh", *one.examples, "```", ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Sequence[str] | None = None, path: Path = PAGE) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cli_page", description="Write docs/cli.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    if not parser.parse_args(arguments).check:
        path.write_bytes(page().encode())
    elif not path.exists() or path.read_bytes() != page().encode():
        sys.stderr.write(f"veen: error: {path.name} is out of date\nveen: hint: run python -m tools.cli_page\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
