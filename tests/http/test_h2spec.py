"""The HTTP/2 conformance tests of h2spec, an independent client, against a real server.

go install github.com/summerwind/h2spec/cmd/h2spec@latest
python -m pytest -m slow tests/http/test_h2spec.py
"""

import asyncio
import os
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.http.loopback import house, run

PROGRAM = os.environ.get("H2SPEC") or shutil.which("h2spec")

# The port also serves HTTP/1.1, so other bytes than the preface are a bad request of HTTP/1.1. The server answers 400
# and closes the connection; h2spec expects no answer.
PERMITTED = {("http2/3.5", "Sends invalid connection preface")}
LEAST_CASES = 140


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="h2spec is not installed; the module says how, or set H2SPEC to its path")
def test_the_server_passes_h2spec(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"

    async def test() -> None:
        async with house() as home:
            options = ("--host", "127.0.0.1", "--port", str(home.server.port), "--junit-report", str(report))
            quiet = asyncio.subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(str(PROGRAM), *options, stdout=quiet)
            await process.wait()
            assert home.faults == []

    run(test)
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    assert len(cases) >= LEAST_CASES
    failed = {(case.get("package"), case.get("classname")) for case in cases if len(case)}
    assert failed == PERMITTED
