"""Reads parts of an index in a separate process that may crash. Runs at every start of a hub, so it imports little."""

import sys
from itertools import islice
from pathlib import Path

import lmdb

UNREADABLE = 3  # exit status if LMDB reports an error
_MAX_ROWS = 4096  # of each table
_MAX_TABLES = 64


def read_some(folder: Path) -> None:
    """Open every table and read its first rows and its last one."""
    with lmdb.open(str(folder), readonly=True, lock=False, max_dbs=_MAX_TABLES, create=False) as env:
        with env.begin() as txn:
            names = [bytes(name) for name, _ in islice(txn.cursor(), _MAX_TABLES)]
        for name in names:
            table = env.open_db(name, create=False)
            with env.begin(db=table) as txn, txn.cursor() as cursor:
                for _ in zip(range(_MAX_ROWS), cursor, strict=False):
                    pass
                cursor.last()


if __name__ == "__main__":
    try:
        read_some(Path(sys.argv[1]))
    except lmdb.Error as error:
        sys.stdout.write(str(error))
        sys.exit(UNREADABLE)
