"""Writes `docs/query-openapi.json`: the HTTP interface of the query service, as served at `/api/openapi.json`.

python -m tools.query_openapi_page            write the file
python -m tools.query_openapi_page --check    fail if the file on disk is out of date
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from veen.query import query_app

PAGE = Path(__file__).parents[1] / "docs" / "query-openapi.json"


def main(arguments: Sequence[str] | None = None, path: Path = PAGE) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.query_openapi_page", description=f"Write docs/{PAGE.name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    if not parser.parse_args(arguments).check:
        path.write_bytes(query_app.openapi_text().encode())
    elif not path.exists() or path.read_bytes() != query_app.openapi_text().encode():
        sys.stderr.write(
            f"veen: error: {path.name} is out of date\nveen: hint: run python -m tools.query_openapi_page\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
