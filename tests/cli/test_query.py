"""`veen query` with a real service and a real hub."""

import csv
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from tests.cli.runner import Ran, Veen
from tests.query.query_fixture import COUNT, LOGIN, WEB, QuerySetup, asking, query_setup
from veen.cli.query.render_result import TimeCounts, svg
from veen.query import digest


class Analyst:
    """A principal of the query service, with a token file."""

    def __init__(self, veen: Veen, at: QuerySetup, name: str, tmp: Path) -> None:
        self.veen = veen
        self.office = at
        self.token_file = tmp / f"{name}.token"
        self.token_file.write_text(at.tokens[name] + "\n")

    @property
    def reach(self) -> tuple[object, ...]:
        return "--service", f"http://127.0.0.1:{self.office.port}", "--token-file", self.token_file

    @property
    def hub(self) -> tuple[object, ...]:
        at = self.office
        return "--hub", at.hub_url, "--client", at.root / "auditor", "--pin", at.hub_id.hex()

    def does(self, *arguments: object) -> Ran:
        return self.veen.done("query", *arguments, *self.reach)

    def fails(self, *arguments: object) -> Ran:
        ran = self.veen("query", *arguments, *self.reach)
        assert ran.status != 0, ran.out
        return ran


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuerySetup]:
    with query_setup(tmp_path_factory.mktemp("office")) as made, made.serving():
        yield made


@pytest.fixture
def alice(veen: Veen, at: QuerySetup, tmp_path: Path) -> Analyst:
    return Analyst(veen, at, "alice", tmp_path)


def completed(desk: Analyst, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = desk.does("submit", *arguments, "--wait", 30, "--json").json()
    return found


def test_a_query_from_options_is_answered(alice: Analyst) -> None:
    found = completed(alice, "--scope", WEB, "--subject", "user:1", "--field", "payload.n", "--evidence", "full")
    assert found["rows"] == [{"payload.n": 1}, {"payload.n": 5}, {"payload.n": 9}]
    assert found["result_digest"]["evidence_policy"] == {"mode": "full"}
    grouped = completed(alice, "--scope", WEB, "--scope", LOGIN, "--metric", "count", "--group-by", "event_type")
    assert [row["count"] for row in grouped["rows"]] == [COUNT, 5]


def test_a_query_from_a_file_is_answered_and_options_come_first(alice: Analyst, tmp_path: Path) -> None:
    file = tmp_path / "query.json"
    file.write_text(json.dumps(asking(filter={"subject_id": "user:1"})))
    assert len(completed(alice, file)["rows"]) == 3
    assert (
        len(completed(alice, file, "--subject", "nobody", "--evidence", "spot:0.5", "--reason", "why not")["rows"]) == 0
    )


def test_without_wait_the_status_can_be_polled(alice: Analyst) -> None:
    accepted = alice.does("submit", "--scope", WEB, "--json").json()
    assert accepted["status"] == "pending"
    while (found := alice.does("status", accepted["result_id"], "--json").json())["status"] != "completed":
        assert found["status"] in ("pending", "running")
    assert len(alice.does("result", accepted["result_id"], "--json").json()["rows"]) == COUNT


def test_a_result_is_a_table_in_a_pipe(alice: Analyst) -> None:
    result_id = completed(alice, "--scope", WEB, "--field", "subject_id", "--field", "payload.n")["result_digest"][
        "result_id"
    ]
    ran = alice.does("result", result_id)
    assert ran.out.splitlines()[1] == "user:1\t1"
    assert f"{COUNT} rows" in ran.err


def test_a_result_can_be_written_in_every_format(alice: Analyst, tmp_path: Path) -> None:
    whole = completed(alice, "--scope", WEB)
    result_id, names = whole["result_digest"]["result_id"], list(whole["rows"][0])
    alice.does("result", result_id, "--out", tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == whole["rows"]
    (header, *rows) = csv.reader(io.StringIO(alice.does("result", result_id, "--format", "csv").out))
    assert (sorted(header), len(rows)) == (sorted(names), COUNT)
    alice.does("result", result_id, "--out", tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.column("subject_id").to_pylist() == [row["subject_id"] for row in whole["rows"]]
    assert json.loads(table.schema.metadata[b"veen.result_digest"]) == whole["result_digest"]
    alice.does("result", result_id, "--out", tmp_path / "counts.svg", "--over", "event_time")
    picture = ElementTree.parse(tmp_path / "counts.svg").getroot()
    titles = [one.text or "" for one in picture.iter("{http://www.w3.org/2000/svg}title")][1:]
    assert sum(int(one.rpartition(": ")[2]) for one in titles) == COUNT
    bars = alice.does("result", result_id, "--format", "plot").out.splitlines()
    assert bars[0].split() == ["hub_commit_time", "count"]


@pytest.mark.parametrize("name", ["counts.png", "rows", "rows.jsonl", "rows.parquet.gz"])
def test_an_output_file_without_a_known_ending_is_rejected_before_any_request(
    veen: Veen, tmp_path: Path, name: str
) -> None:
    (tmp_path / "token").write_text("t")
    unreachable = ("--service", "http://127.0.0.1:1", "--token-file", tmp_path / "token")
    for command in (("result", "r-1"), ("submit", "--scope", WEB)):
        ran = veen("query", *command, *unreachable, "--out", tmp_path / name)
        assert (ran.status, "has no known ending" in ran.error) == (2, True), ran.err
        assert ".json, .csv, .parquet, .svg" in ran.err
    assert not (tmp_path / name).exists()


def test_a_given_format_is_written_to_any_file_name(alice: Analyst, tmp_path: Path) -> None:
    result_id = completed(alice, "--scope", WEB, "--field", "subject_id")["result_digest"]["result_id"]
    alice.does("result", result_id, "--format", "csv", "--out", tmp_path / "rows.txt")
    assert (tmp_path / "rows.txt").read_text().startswith("subject_id\n")
    alice.does("result", result_id, "--out", tmp_path / "ROWS.CSV")
    assert (tmp_path / "ROWS.CSV").read_text() == (tmp_path / "rows.txt").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is empty"), (" \n", "is empty"), ("principal\talice\n", "contains more than a token")],
)
def test_a_token_file_without_a_token_is_rejected_before_any_request(
    veen: Veen, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "token").write_text(content)
    service = ("--service", "http://127.0.0.1:1", "--token-file", tmp_path / "token")
    ran = veen("query", "status", "r-1", *service)
    assert (ran.status, message in ran.error) == (2, True), ran.err


def test_an_unreachable_service_is_named_with_a_hint(veen: Veen, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    ran = veen("query", "status", "r-1", "--service", "http://127.0.0.1:1", "--token-file", tmp_path / "token")
    assert ran.status == 6
    assert ran.error == "the query service at http://127.0.0.1:1 does not answer: connection refused"
    assert "veen query serve" in ran.err


def test_bars_of_a_picture_have_a_maximum_width() -> None:
    for bars in ((41,), (5, 0, 9), tuple(range(1, 49))):
        picture = ElementTree.fromstring(svg(TimeCounts("hub_commit_time", 60, 1_700_000_040, bars)))
        widths = {float(one.get("width", "0")) for one in picture.iter("{http://www.w3.org/2000/svg}rect")}
        assert 0 < max(widths) <= 40


def test_a_result_that_cannot_be_shown_in_a_format_is_an_error(alice: Analyst) -> None:
    result_id = completed(alice, "--scope", WEB, "--field", "origin")["result_digest"]["result_id"]
    assert "no time field" in alice.fails("result", result_id, "--format", "plot").error
    assert "no format" in alice.fails("result", result_id, "--format", "xml").error
    assert "needs a file" in alice.fails("result", result_id, "--format", "parquet").error


def test_errors_of_the_service_are_shown_with_their_code(alice: Analyst) -> None:
    ran = alice.fails("submit", "--scope", "record/security/secret")
    assert (ran.status, ran.error.partition(":")[0]) == (5, "forbidden_scope")
    assert alice.fails("status", "r-none").error.startswith("query_not_found")
    assert alice.fails("submit", "--scope", WEB, "--field", "colour").error.startswith("invalid_query_descriptor")
    assert alice.fails("submit", "--scope", WEB, "--evidence", "spot:many").status == 2


class Refusing(BaseHTTPRequestHandler):
    """A service that returns a list of prepared errors."""

    left: ClassVar[list[tuple[int, dict[str, str]]]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status, error = self.left.pop(0)
        body = json.dumps(error).encode()
        self.send_response(status)
        self.send_header("retry-after", "0")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_submit_retries_while_the_service_loads_its_tables(veen: Veen, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token\n")
    filling = "the tables are being filled: {} of 40 parts".format
    refusals = [(503, {"error_code": "tables_not_ready", "message": filling(number)}) for number in (3, 9)]
    Refusing.left = [*refusals, (429, {"error_code": "too_many_queries", "message": "enough"})]
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        reach = "--service", f"http://127.0.0.1:{server.server_port}", "--token-file", tmp_path / "token"
        ran = veen("query", "submit", "--scope", WEB, *reach)
        server.shutdown()
        serving.join()
    assert Refusing.left == []
    assert filling(3) in ran.err
    assert filling(9) in ran.err
    assert ran.status == 5
    assert "--max-open" in ran.err


def test_a_missing_token_or_service_is_an_error(alice: Analyst, veen: Veen, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{alice.office.port}"
    nameless = veen("query", "status", "r-1", "--token-file", alice.token_file)
    assert (nameless.status, nameless.error) == (2, "missing option '--service' (env var: 'VEEN_QUERY')")
    assert veen("query", "status", "r-1", "--service", url).status == 2
    assert veen("query", "status", "r-1", "--service", "nowhere", "--token-file", alice.token_file).status == 2
    assert veen("query", "status", "r-1", "--service", url, "--token-file", tmp_path / "none").status == 6
    wrong = tmp_path / "wrong"
    wrong.write_text("veenq_wrong")
    assert veen("query", "status", "r-1", "--service", url, "--token-file", wrong).error.startswith("unauthorized")
    dead = veen("query", "status", "r-1", "--service", "http://127.0.0.1:9", "--token-file", alice.token_file)
    assert (dead.status, "does not answer" in dead.error) == (6, True)


def test_a_result_is_verified_against_the_log(alice: Analyst) -> None:
    result_id = completed(alice, "--scope", WEB, "--evidence", "full")["result_digest"]["result_id"]
    found = alice.does("verify", result_id, *alice.hub, "--json").json()
    assert (found["verified"], found["rows"], found["receipts"], found["receipts_elsewhere"]) == (True, COUNT, COUNT, 0)


def test_a_recorded_query_can_be_replayed(alice: Analyst, veen: Veen) -> None:
    digest = completed(alice, "--scope", WEB, "--evidence", "spot:0.3", "--id", "q-again")["result_digest"]
    found = veen.done("query", "replay", "q-again", "--tables", alice.office.tables, *alice.hub, "--json").json()
    assert found["agrees"] is True
    assert (found["rows_hash"], found["evidence_hash"]) == (digest["rows_hash"], digest["evidence_hash"])
    missing = veen("query", "replay", "q-none", "--tables", alice.office.tables, *alice.hub)
    assert (missing.status, "no readable query" in missing.error) == (6, True)


def test_a_service_that_changes_rows_is_caught(veen: Veen, place: Path, tmp_path: Path) -> None:
    """Rows, digest and job are changed together: the service accepts them, but they differ from the log."""
    with query_setup(place) as at:
        alice = Analyst(veen, at, "alice", tmp_path)
        with at.serving():
            made = completed(alice, "--scope", WEB, "--field", "subject_id")["result_digest"]
        rows = at.folder / "rows" / f"{made['result_id']}.rows"
        rows.write_bytes(rows.read_bytes().replace(b"user:1", b"user:2", 1))
        job = at.folder / "jobs" / f"{made['result_id']}.json"
        changed_hash = digest.rows_hash(rows.read_bytes().split(b"\n")[:-1])
        job.write_text(job.read_text().replace(made["rows_hash"], changed_hash))
        with at.serving():
            assert alice.does("result", made["result_id"], "--json").json()["rows"][1]["subject_id"] == "user:2"
            ran = alice.fails("verify", made["result_id"], *alice.hub)
            assert (ran.status, "differs from what the service shows" in ran.error) == (4, True)
        found = veen.done("query", "replay", made["query_id"], "--tables", at.tables, *alice.hub, "--json").json()
        assert found["agrees"] is True


def test_replay_on_changed_tables_does_not_agree(veen: Veen, place: Path, tmp_path: Path) -> None:
    with query_setup(place) as at:
        alice = Analyst(veen, at, "alice", tmp_path)
        with at.serving():
            query_id = completed(alice, "--scope", WEB)["result_digest"]["query_id"]
        (path,) = (at.tables / "events").glob("stream=record%2Fapp%2Fweb/*/*.parquet")
        pq.write_table(pq.read_table(path).slice(1), path)
        ran = veen("query", "replay", query_id, "--tables", at.tables, *alice.hub, "--json")
        assert ran.status == 4
        assert ran.json()["differences"] == ["row_count", "rows_hash"]


def test_tokens_are_made_shown_once_listed_and_revoked(veen: Veen, tmp_path: Path) -> None:
    folder = tmp_path / "queries"
    options = ("--client-id", "ab" * 32, "--scope", "record/app/*")
    made = veen.done("query", "token", folder, "dora", *options, "--json").json()
    assert made["token"].startswith("veenq_")
    assert made["token"] not in (folder / "principals.json").read_text()
    veen.done("query", "token", folder, "dora", "--name", "laptop", "--sees-all")
    (listed,) = veen.done("query", "token", folder, "--json").json()
    assert (listed["tokens"], listed["sees"], listed["scope"]) == (["default", "laptop"], "all", ["record/app/*"])
    veen.done("query", "token", folder, "dora", "--revoke", "laptop")
    assert veen.done("query", "token", folder, "--json").json()[0]["tokens"] == ["default"]
    assert "already" in veen("query", "token", folder, "dora").error
    assert "there is no principal eve yet" in veen("query", "token", folder, "eve").error
    assert veen("query", "token", folder, "eve", "--client-id", "short").status == 2
    assert "no token" in veen("query", "token", folder, "dora", "--revoke", "none").error


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "place"
    made.mkdir()
    return made
