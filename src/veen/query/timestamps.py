"""Times of the query service: UTC with exactly three digits of milliseconds. 001, query-api-spec §3.2."""

import re
from datetime import UTC, datetime

_FORM = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,3}))?Z", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = 1000


def parse(text: str) -> int:
    """Milliseconds since 1970. Raises `ValueError` for another format or a time before 1970."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError("not of the form YYYY-MM-DDTHH:MM:SSZ with at most three decimal places")
    moment = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    if moment < _EPOCH:
        raise ValueError("before 1970")
    return int((moment - _EPOCH).total_seconds()) * _MS + int((found[2] or "0").ljust(3, "0"))


def write(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, _MS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


def ceil_seconds(milliseconds: int | None) -> int | None:
    """Round up to a whole second, since hub_commit_time has no fractions."""
    return None if milliseconds is None else -(-milliseconds // _MS)
