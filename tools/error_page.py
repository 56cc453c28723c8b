"""Writes `docs/errors.md` from the tables of `veen.core.admission`: what a hub may answer, and what to do then.

python -m tools.error_page            write the page
python -m tools.error_page --check    fail where the page on disk is another
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from veen.core import jsonform
from veen.core.admission import ADMISSION, ADMISSION_STATUS, API_STATUS, BY_DETAIL
from veen.core.envelopes import ErrorEnvelope

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"

# What each code of the endpoints means, and what to do: these have no table in the core. Spec §10.6.
API_MEANING = {
    "E.BAD_REQUEST": ("not the request it claims to be: malformed, unknown fields, wrong types", "mend the request"),
    "E.VERSION": ("the path names another major version than `/v1`", "use a client that speaks this hub's version"),
    "E.UNAUTHORIZED": ("the call needs the operator's token or a capability", "send one along"),
    "E.FORBIDDEN": ("the capability does not reach that far", "ask its issuer for one that does"),
    "E.NOT_FOUND": ("the label, or that place in it, is unknown", "check label and stream_seq; it may come later"),
    "E.CONFLICT": ("it contradicts what is already there", "fetch what is there before sending again"),
    "E.LIMIT": ("it is above one of this hub's limits", "ask for less; the hub's status lists its limits"),
    "E.UNAVAILABLE": ("busy, starting or stopping: nothing was decided", "try again, after retry_after if it is there"),
}

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


def page() -> str:
    """The page as it should be on disk."""
    example = json.dumps(json.loads(jsonform.encode(EXAMPLE)), indent=2)
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
            "",
        ]
    )


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
