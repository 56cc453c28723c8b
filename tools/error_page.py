"""Writes `docs/errors.md` from the tables of `veen.core.admission`: what a hub may answer, and what to do then.

python -m tools.error_page            write the page
python -m tools.error_page --check    fail where the page on disk is another
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from veen.core import wire_json
from veen.core.admission import ADMISSION, ADMISSION_STATUS, API_MEANING, API_STATUS, BY_DETAIL
from veen.core.envelopes import ErrorEnvelope
from veen.hub.responses import FRONT_CODES

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"

EXAMPLE = ErrorEnvelope.of(
    BY_DETAIL["CAP_RATE"].refused("the capability's bucket is empty", retry_after=1), request_id="7f3a"
)

HEAD = """\
# Errors

This page is written by `python -m tools.error_page` from `veen.core.admission`; change it there.

Whatever a hub refuses, it answers with the same map, in CBOR or in JSON. `code` is for programs and `message` for
people. For a refused message, `detail` holds the `stage` that refused it and, as `detail_enum`, the check that failed.

```json
{example}
```

## Refused messages

The checks run in this order and the first that fails is the answer, so two hubs with the same log and the same limits
refuse a message in the same way. Nothing is kept of a refused message.
"""

TAIL = """
`E.RATE` comes with `retry_after`, in whole seconds, and with the same number in the HTTP header `Retry-After`; without
it, waiting does not help.

## Refused requests

What the endpoints answer to a request that is not about admitting a message.
"""

FRONT = """
What never becomes a request, because it is no HTTP, is too large or too late, or finds no free connection, is refused
with the same map under HTTP's own status:
"""

FORM = """
An answer has the form of the request's `Content-Type`, and a body without one is taken for CBOR. What has no body is
answered in JSON where `Accept` names it, in CBOR otherwise. What was refused before so much could be read of it is
answered in CBOR under `/v1/` and `/tooling/`, in JSON elsewhere.
"""


def page() -> str:
    """The page as it should be on disk."""
    example = json.dumps(json.loads(wire_json.encode(EXAMPLE)), indent=2)
    admission = [
        (row.stage, row.failure, f"`{row.code}`", f"`{row.detail_enum}`", ADMISSION_STATUS[row.code], row.advice)
        for row in ADMISSION
    ]
    api = [(f"`{code}`", status, *API_MEANING[code]) for code, status in API_STATUS.items()]
    return "\n".join(
        [
            HEAD.format(example=example),
            *table(("stage", "what failed", "code", "detail_enum", "HTTP", "what to do"), admission),
            TAIL,
            *table(("code", "HTTP", "what it means", "what to do"), api),
            FRONT,
            *(f"- `{code}`: {', '.join(statuses)}" for code, statuses in front_statuses().items()),
            FORM,
        ]
    )


def front_statuses() -> dict[str, list[str]]:
    """The statuses of the HTTP front by code."""
    found: dict[str, list[str]] = {}
    for status, code in FRONT_CODES.items():
        found.setdefault(code, []).append(str(status))
    return found


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    head, *body = ["| " + " | ".join(map(str, cells)) + " |" for cells in [names, *rows]]
    return [head, "|---" * len(names) + "|", *body]


def main(arguments: Sequence[str] | None = None, path: Path = PAGE) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.error_page", description="Write docs/errors.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page is out of date")
    if not parser.parse_args(arguments).check:
        path.write_bytes(page().encode())
    elif not path.exists() or path.read_bytes() != page().encode():
        sys.stderr.write(f"veen: error: {path.name} is out of date\nveen: hint: run python -m tools.error_page\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
