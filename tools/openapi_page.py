"""Writes `docs/openapi.json`: the hub's HTTP interface, as the hub serves it at `/tooling/openapi.json`.

python -m tools.openapi_page            write the file
python -m tools.openapi_page --check    fail if the file on disk is out of date
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from veen.hub import hub_openapi

PAGE = Path(__file__).parents[1] / "docs" / "openapi.json"


def page() -> str:
    """The expected content of the file."""
    return json.dumps(hub_openapi.describe(), indent=2) + "\n"


def main(arguments: Sequence[str] | None = None, path: Path = PAGE) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.openapi_page", description="Write docs/openapi.json.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    if not parser.parse_args(arguments).check:
        path.write_bytes(page().encode())
    elif not path.exists() or path.read_bytes() != page().encode():
        sys.stderr.write(f"veen: error: {path.name} is out of date\nveen: hint: run python -m tools.openapi_page\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
