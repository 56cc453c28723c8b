"""`veen query`: query recorded events, with evidence."""

import asyncio
import re
import ssl
import sys
import time
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import typer

from plumbing import service_process
from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, command, group, misuse, option, options_command
from plumbing.http import tls_context
from veen.cli.kit import key_files, output, output_files
from veen.cli.kit.common_options import HubOptions, JsonOption
from veen.cli.kit.context_file import need_client
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Column, Result, fields_of
from veen.cli.kit.values import Address, listen_option
from veen.cli.query import render_result
from veen.cli.query.render_result import RenderOptions
from veen.client import local_files
from veen.client.client import Client
from veen.client.local_files import DISK
from veen.client.trust import Pin
from veen.core import HubIdentity, canonical_json
from veen.core.canonical_json import Plain
from veen.core.limits import MAX_JSON_BYTES
from veen.pipeline import session
from veen.pipeline.decoding import Keys
from veen.query import answer_verify, result_evidence
from veen.query.answer_verify import AnswerVerified, ReplayedQuery
from veen.query.answer_verify import export as exported
from veen.query.answer_verify import replay as again
from veen.query.descriptor import QueryDescriptor
from veen.query.execution import DEFAULTS, QueryLimits
from veen.query.policy import PolicyBook, QueryPrincipal
from veen.query.query_client import AcceptedQuery, FullResult, QueryClient, ServiceAccess
from veen.query.query_errors import QueryCode, QueryFault
from veen.query.query_server import PRINCIPALS, Settings, execution_of, serving
from veen.query.query_store import RecordedPlace
from veen.query.result_evidence import ResultEvidence

app = group(
    "query",
    """Query recorded events, and prove the answers.

    A service accepts queries, records them and their results in the log, and stores the results. Anyone can verify a
    result against the log, or repeat the query, even in another zone.
    """,
)

_MAX_TOKEN_BYTES = 4_096

ServiceUrl: TypeAlias = Annotated[str, option("--service URL", "the query service", envvar="VEEN_QUERY")]
TokenFile: TypeAlias = Annotated[
    Path | None, option("--token-file FILE", "file with your token", envvar="VEEN_QUERY_TOKEN_FILE")
]
Certificate: TypeAlias = Annotated[Path | None, option("--cert FILE", "your certificate, instead of a token")]
CertificateKey: TypeAlias = Annotated[Path | None, option("--cert-key FILE", "key of your certificate in PEM")]
ServiceCa: TypeAlias = Annotated[
    Path | None, option("--ca FILE", "certificate authority of the service", show_default="the system's")
]
TablesDir: TypeAlias = Annotated[Path, option("--tables DIR", "tables from veen pipeline run")]
Source: TypeAlias = Annotated[
    str | None, option("--source URL|DIR", "first update the tables from this hub or data directory")
]
Trust: TypeAlias = Annotated[
    list[Path] | None, option("--trust PATH", "identity file of a hub that events were imported from")
]


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Options for the query service and the credentials."""

    service: ServiceUrl
    token_file: TokenFile = None
    cert: Certificate = None
    cert_key: CertificateKey = None
    ca: ServiceCa = None
    as_json: JsonOption = False

    def remote(self) -> QueryClient:
        """The client of the service. Raises if the options contradict each other."""
        if self.token_file is None and self.cert is None:
            raise Misuse("missing --token-file or --cert", "--token-file FILE names the file with your token")
        if (self.cert is None) != (self.cert_key is None):
            raise Misuse("--cert and --cert-key must be given together", "give both")
        if not self.service.startswith(("http://", "https://")):
            raise Misuse(f"{self.service!r} is not an HTTP URL", "give --service http://HOST:PORT")
        token = None
        if self.token_file is not None:
            token = local_files.read_file(self.token_file, _MAX_TOKEN_BYTES).decode("utf-8", "replace").strip()
            if not re.fullmatch(r"[!-~]+", token):
                what = "is empty" if not token else "contains more than a token"
                raise Misuse(f"{self.token_file} {what}", "veen query token prints a token")
        return QueryClient(ServiceAccess(self.service, token, self.cert, self.cert_key, self.ca))


_PORT = 37_420
_DAY_S = 86_400


@options_command(
    HubOptions,
    app,
    "serve",
    "veen query serve queries --tables tables --client service",
    "veen query serve queries --tables tables --source http://127.0.0.1:37411 --client service",
)
def serve(
    asked: HubOptions,
    folder: Annotated[Path, argument("DIR", "folder of the service, for queries and results")],
    tables: TablesDir,
    source: Source = None,
    listen: Annotated[Address | None, listen_option(f"127.0.0.1:{_PORT}")] = None,
    cert: Annotated[Path | None, option("--tls-cert FILE", "serve TLS with this chain")] = None,
    key: Annotated[Path | None, option("--tls-key FILE", "key of the certificate")] = None,
    client_ca: Annotated[
        Path | None, option("--tls-client-ca FILE", "certificate authority of client certificates")
    ] = None,
    names: Annotated[
        list[str] | None, option("--name HOST", "a host name that requests may use, for example behind a proxy")
    ] = None,
    trust: Trust = None,
    workers: Annotated[int, option("--workers N", "queries that run at the same time", min=1, max=64)] = 2,
    spark: Annotated[bool, option("--spark", "run large queries on Spark, which must be installed")] = False,
    max_rows: Annotated[
        int, option("--max-rows N", "maximum rows of a result, and events verified for it", min=1)
    ] = DEFAULTS.max_rows,
    max_bytes: Annotated[int, option("--max-bytes N", "maximum bytes of a result", min=1)] = DEFAULTS.max_bytes,
    max_time: Annotated[
        int, durations.whole_option("--max-time", least=1, most=_DAY_S, help="time limit of a query")
    ] = int(DEFAULTS.max_run_s),
    max_open: Annotated[
        int, option("--max-open N", "maximum unfinished queries of one principal", min=1)
    ] = DEFAULTS.max_open,
) -> None:
    """Accept queries over HTTP, record and run them, and record their results.

    The file DIR/principals.json says who may query which streams; veen query token writes it. By default the service
    listens on this machine only and rejects requests with another Host or Origin. A query that exceeds a limit is
    stopped. Queries that were running when the service stopped or was killed continue when it starts again.
    """
    if (cert is None) != (key is None) or (client_ca is not None and cert is None):
        raise Misuse("--tls-cert and --tls-key must be given together", "give both; --tls-client-ca needs them")
    where = listen or Address("127.0.0.1", _PORT)
    settings = Settings(
        folder,
        tables,
        where.host,
        where.port,
        tls_context(cert, key, client_ca) if cert and key else None,
        source,
        _keys(asked),
        identities(trust),
        session if spark else None,
        workers,
        QueryLimits(max_rows, max_bytes, max_run_s=max_time, max_open=max_open),
        tuple(names or ()),
    )
    asked.call().run(lambda client: _serve(client, settings, asked.as_json))


def _keys(asked: HubOptions) -> Keys:
    """References to the keys of the client."""
    passphrase = None if asked.passphrase_file is None else str(asked.passphrase_file)
    return Keys((str(need_client(asked.client)),), passphrase)


def identities(trust: list[Path] | None) -> dict[bytes, HubIdentity]:
    """Identity records of the hubs that events were imported from."""
    found = {}
    for path in trust or ():
        record = Pin.of_file(path).record
        if record is None:
            raise Misuse(f"{path} is not an identity file", "give the hub's identity file or data directory")
        found[record.hub_id] = record
    return found


async def _serve(client: Client, settings: Settings, as_json: bool) -> None:
    stopped = asyncio.Event()
    service_process.stop_on_signals(stopped.set)

    def report(where: str, error: BaseException) -> None:
        output.remark(f"{where}: {type(error).__name__}: {error}")

    async with serving(client, settings, report) as server:
        scheme = "http" if settings.tls is None else "https"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"{scheme}://{host}:{server.port}"
        output.facts({"url": url, "hub_id": client.hub_id}, as_json)
        sys.stdout.flush()
        service_process.ready(f"serving {url}")
        await stopped.wait()


_YEAR_S = 365 * 86_400
TokenTtl: TypeAlias = Annotated[
    int, durations.whole_option("--ttl", least=1, show_default="365d", help="how long the token is valid")
]


@command(
    app,
    "token",
    "veen query token queries alice --client-id 5f1c8a… --scope 'record/app/*'",
    "veen query token queries alice --name laptop --ttl 1d",
    "veen query token queries alice --revoke laptop",
    "veen query token queries",
)
def token(
    folder: Annotated[Path, argument("DIR", "the folder of the service")],
    name: Annotated[str | None, argument("NAME", "the principal", show_default="list all principals")] = None,
    client_id: Annotated[str | None, option("--client-id HEX", "the client key of NAME")] = None,
    scope: Annotated[
        list[str] | None, option("--scope STREAM", "a stream that NAME may query; STREAM* for a prefix")
    ] = None,
    sees_all: Annotated[bool, option("--sees-all", "let NAME see the results of other principals")] = False,
    subject: Annotated[str | None, option("--subject ID", "the subject that NAME acts for, for the record")] = None,
    cert: Annotated[Path | None, option("--cert FILE", "a client certificate of NAME, instead of a token")] = None,
    token_name: Annotated[str, option("--name TEXT", "name of the token")] = "default",
    ttl: TokenTtl = _YEAR_S,
    revoke: Annotated[str | None, option("--revoke TEXT", "revoke the token of this name")] = None,
    as_json: JsonOption = False,
) -> None:
    """Define who may query which streams, and issue tokens.

    A token is shown once; only its hash is stored. Changes take effect at once, even in a running service.
    """
    DISK.make_folder(folder)
    book = PolicyBook(folder / PRINCIPALS)
    if name is None:
        return _list_principals(book, as_json)
    if revoke is not None:
        book.revoke(name, revoke)
        return output.facts({"principal": name, "revoked": revoke}, as_json)
    made, certificates = book.get(name) or QueryPrincipal(name, client_id or ""), _fingerprints(cert)
    if not (client_id or made.client_id):
        raise Misuse(f"there is no principal {name} yet", "give --client-id HEX, the client key of the principal")
    changed = replace(
        made,
        client_id=client_id or made.client_id,
        scope=made.scope if scope is None else tuple(sorted(set(scope))),
        sees="all" if sees_all else made.sees,
        subject=subject or made.subject,
        certificates=tuple(sorted({*made.certificates, *certificates})),
    )
    with misuse("a client_id is 64 hex digits: veen card shows them"):
        book.put(changed)
    shown: dict[str, output.Value] = {"principal": name}
    if cert is None:
        shown |= {"name": token_name, "token": book.issue(name, token_name, ttl)}
        output.remark("store the token now: it is not shown again")
    output.facts(shown, as_json)


def _list_principals(book: PolicyBook, as_json: bool) -> None:
    listed = [
        {
            "principal": one.name,
            **fields_of(one, "client_id", "scope", "sees"),
            "tokens": [token.name for token in one.tokens],
            "certificates": one.certificates,
        }
        for one in book.principals()
    ]
    columns: list[Column] = [
        "principal",
        "client_id",
        ("scope", lambda one: " ".join(one["scope"])),
        "sees",
        ("tokens", lambda one: " ".join(one["tokens"])),
        ("certificates", lambda one: len(one["certificates"])),
    ]
    Result(listed, columns=columns).show(as_json)


def _fingerprints(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        return (sha256(ssl.PEM_cert_to_DER_cert(path.read_text())).hexdigest(),)
    except ValueError:
        raise Misuse(f"{path} is not a certificate in PEM", "give the certificate, not its key") from None


_TONES = {"completed": Tone.GOOD, "failed": Tone.BAD}
_RETRY_S = 5

Format: TypeAlias = Annotated[
    str | None, option("--format WORD", "table, json, csv, parquet or plot", show_default="table")
]
Out: TypeAlias = Annotated[
    Path | None,
    option("--out FILE", "write the result to a file; the ending .json, .csv, .parquet or .svg sets the format"),
]
Plot: TypeAlias = Annotated[
    str | None, option("--over FIELD", "time field of a plot", show_default="the first time field of the rows")
]


@options_command(
    ServiceOptions,
    app,
    "submit",
    "veen query submit query.json --service http://127.0.0.1:37420 --token-file token",
    "veen query submit --scope record/app/http --type login --field subject_id --evidence full",
    "veen query submit --scope record/app/http --metric count --group-by event_type --wait 10",
)
def submit(
    asked: ServiceOptions,
    file: Annotated[Path | None, argument("FILE", "a query descriptor as JSON; options override its fields")] = None,
    scope: Annotated[list[str] | None, option("--scope STREAM", "a stream to query")] = None,
    subject: Annotated[str | None, option("--subject ID", "only events of this subject")] = None,
    types: Annotated[list[str] | None, option("--type TYPE", "only events of this type")] = None,
    time_from: Annotated[
        str | None, option("--from TIME", "only events recorded at or after this time, such as 2025-11-19T03:20:00Z")
    ] = None,
    time_to: Annotated[str | None, option("--to TIME", "only events recorded before this time")] = None,
    names: Annotated[
        list[str] | None, option("--field NAME", "a field of the rows, such as payload.http.status", show_default="all")
    ] = None,
    metrics: Annotated[
        list[str] | None, option("--metric NAME", "count, or min, max, sum or distinct of a field")
    ] = None,
    group_by: Annotated[list[str] | None, option("--group-by NAME", "group by this field")] = None,
    evidence: Annotated[
        str | None, option("--evidence WORD", "none, full, or spot:RATE as in spot:0.1", show_default="none")
    ] = None,
    query_id: Annotated[str | None, option("--id TEXT", "choose the id of the query")] = None,
    reason: Annotated[str | None, option("--reason TEXT", "reason of the query, for the record")] = None,
    wait: Annotated[
        int, durations.whole_option("--wait", least=0, most=30, help="how long to wait for the result")
    ] = 0,
    form: Format = None,
    out: Out = None,
    over: Plot = None,
) -> None:
    """Submit a query to a service; the query is recorded before it runs.

    With --wait, a result that arrives in time is shown as by veen query result.
    """
    options = RenderOptions(form, out, over)
    options.chosen()  # check the options before submitting
    query = _read_descriptor(file)
    filters = dict(query.get("filter") or {})
    window = {**(filters.get("time") or {}), **_without_none(**{"from": time_from, "to": time_to})}
    filters |= _without_none(subject_id=subject, event_type=types, time=window or None)
    query |= {"filter": filters, **_without_none(scope=scope, projection=names, query_id=query_id)}
    query.setdefault("projection", ["*"])
    if metrics or group_by:
        query["aggregate"] = {"group_by": group_by or [], "metrics": metrics or ["count"]}
    if evidence is not None or "evidence" not in query:
        query["evidence"] = _policy(evidence or "none")
    if reason is not None:
        query["meta"] = {**(query.get("meta") or {}), "reason": reason}
    with asked.remote() as service:
        found = _submit(service, query, wait)
        _show_submitted(service, found, asked, wait, options)


def _submit(service: QueryClient, query: dict[str, Any], wait: int) -> AcceptedQuery | FullResult:
    """Submit a query; retry while the service is loading its tables. It records the query only once it accepts it."""
    last_message = ""
    while True:
        try:
            return service.submit(query, wait)
        except QueryFault as fault:
            if fault.code != QueryCode.TABLES_NOT_READY:
                raise
            if fault.message != last_message:
                output.remark(fault.message)
            last_message = fault.message
            time.sleep(_RETRY_S if fault.retry_after is None else fault.retry_after)


def _show_submitted(
    service: QueryClient,
    found: AcceptedQuery | FullResult,
    asked: ServiceOptions,
    wait: int,
    options: RenderOptions,
) -> None:
    if isinstance(found, AcceptedQuery):
        status = service.status(found.result_id)["status"] if wait else found.status
        if status != "completed":
            shown = {"query_id": found.query_id, "result_id": found.result_id, "status": status}
            output.facts(shown, asked.as_json)
            return
        found = service.result(found.result_id)
    names = render_result.column_names(service.descriptor(found.digest.query_id)[0])
    render_result.show(found, names, asked.as_json, options)


@options_command(
    ServiceOptions,
    app,
    "status",
    "veen query status r-5f1c… --service http://127.0.0.1:37420 --token-file token --json",
)
def status(
    asked: ServiceOptions,
    result_id: Annotated[str, argument("RESULT_ID", "the id from veen query submit")],
) -> None:
    """Show the status of a query."""
    with asked.remote() as service:
        found = service.status(result_id)
    status = Marked(str(found["status"]), _TONES.get(str(found["status"]), Tone.WARN))
    reasons = [name for name in ("error_code", "message") if found[name] is not None]
    Result(found, facts=["query_id", "result_id", ("status", lambda _: status), *reasons]).show(asked.as_json)


@options_command(
    ServiceOptions,
    app,
    "result",
    "veen query result r-5f1c… --service http://127.0.0.1:37420 --token-file token",
    "veen query result r-5f1c… --out rows.parquet",
    "veen query result r-5f1c… --format plot",
    "veen query result r-5f1c… --out counts.svg --over hub_commit_time",
)
def result(
    asked: ServiceOptions,
    result_id: Annotated[str, argument("RESULT_ID", "the id from veen query submit")],
    form: Format = None,
    out: Out = None,
    over: Plot = None,
) -> None:
    """Fetch all rows of a result and verify its digest.

    A plot consists of bars on a terminal and is an SVG picture in a file.
    """
    options = RenderOptions(form, out, over)
    options.chosen()  # check the options before fetching
    with asked.remote() as service:
        found = service.result(result_id)
        names = render_result.column_names(service.descriptor(found.digest.query_id)[0])
    render_result.show(found, names, asked.as_json, options)


def _read_descriptor(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    found = canonical_json.parse(local_files.read_file(file, MAX_JSON_BYTES), str(file))
    if not isinstance(found, dict):
        raise Misuse(f"{file} is not a JSON object", "give a query descriptor; docs/query.md describes its fields")
    return dict(found)


def _without_none(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _policy(text: str) -> dict[str, Any]:
    mode, colon, rate = text.partition(":")
    if not colon:
        return {"mode": mode}
    try:
        return {"mode": mode, "sample_rate": float(rate)}
    except ValueError:
        raise Misuse(f"{rate!r} is not a rate", "give spot:0.1 for a tenth of the rows") from None


_UNVERIFIED_STATUS = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a service. Only the match of rows and digest is verified."""

    descriptor: QueryDescriptor
    request: RecordedPlace
    whole: FullResult
    summary: dict[str, Plain]

    @classmethod
    def fetch(cls, service: QueryClient, result_id: str) -> Self:
        whole, summary = service.result(result_id), service.evidence(result_id)
        value, request = service.descriptor(whole.digest.query_id)
        descriptor = answer_verify.descriptor_of(value)
        answer_verify.check_rows(descriptor, whole, summary)
        return cls(descriptor, request, whole, summary)

    async def check(self, client: Client) -> AnswerVerified:
        """Check it against the hub's log. Raises `Unverified`."""
        return await answer_verify.check_log(client, self.descriptor, self.request, self.whole, self.summary)


@options_command(
    HubOptions,
    app,
    "verify",
    "veen query verify r-5f1c… --service http://127.0.0.1:37420 --token-file token --client auditor",
)
def verify(
    asked: HubOptions,
    result_id: Annotated[str, argument("RESULT_ID", "the id from veen query submit")],
    service: ServiceUrl,
    token_file: TokenFile = None,
    cert: Certificate = None,
    cert_key: CertificateKey = None,
    ca: ServiceCa = None,
) -> None:
    """Verify a result against the log, without trusting the service.

    The rows must match the digest. The digest and the query must be in the hub's log at the places that the service
    names, and the receipts in the evidence must be the hub's.
    """
    with ServiceOptions(service, token_file, cert, cert_key, ca).remote() as answering:
        answer = Answer.fetch(answering, result_id)
    found = asked.call().run(answer.check)
    shown = {
        "query_id": answer.whole.digest.query_id,
        "result_id": result_id,
        "rows": found.rows,
        "rows_hash": answer.whole.digest.rows_hash,
        "request": answer.request.receipt_id,
        "result": answer.whole.recorded.receipt_id,
        "receipts": found.receipts,
        "receipts_elsewhere": found.elsewhere,
    }
    checks = Marked("rows, evidence, the query and the digest in the log", Tone.GOOD)
    Result({**shown, "verified": True}, facts=[*shown, ("verified", lambda _: checks)]).show(asked.as_json)


@options_command(
    HubOptions,
    app,
    "export",
    "veen query export r-5f1c… --out result.evidence --token-file token",
    "veen query export r-5f1c… --out result.evidence --disclose --writer service.card",
)
def export(
    asked: HubOptions,
    result_id: Annotated[str, argument("RESULT_ID", "the id from veen query submit")],
    out: Annotated[Path, option("--out FILE", "the file to create")],
    service: ServiceUrl,
    token_file: TokenFile = None,
    cert: Certificate = None,
    cert_key: CertificateKey = None,
    ca: ServiceCa = None,
    disclose: Annotated[
        bool, option("--disclose", "include the events behind the rows, and the keys that open them (and no others)")
    ] = False,
    writer: Annotated[
        list[Path] | None, option("--writer CARD", "include a card of the service or of a writer of the events")
    ] = None,
    cosigned: Annotated[
        bool, option("--cosigned", "prove all entries in the newest logs that a witness cosigned")
    ] = False,
) -> None:
    """Verify a result, and write it as an evidence file for others.

    The file contains the rows, the recorded query and digest, and, for queries with evidence, the hub's receipts of the
    events with their proofs. veen evidence verify and the verifier page verify it offline, without the service or a
    token. Anyone with the file can read the query and the rows.
    """
    output_files.check_new(out)
    cards = tuple(map(key_files.read_confirmed_card, writer or ()))
    with ServiceOptions(service, token_file, cert, cert_key, ca).remote() as answering:
        answer = Answer.fetch(answering, result_id)

    async def work(client: Client) -> tuple[ResultEvidence, AnswerVerified]:
        verified = await answer.check(client)
        made = await exported(
            client, answer.request, answer.whole, answer.summary, disclose=disclose, cosigned=cosigned, writers=cards
        )
        return made, verified

    made, verified = asked.call().run(work)
    data = made.encode()
    result_evidence.verify(data, made.parts[0].identity.hub_id)
    output_files.write_new(out, data)
    shown: dict[str, output.Value] = {
        "query_id": answer.whole.digest.query_id,
        "result_id": result_id,
        "rows": verified.rows,
        "receipts": verified.receipts,
        "receipts_elsewhere": verified.elsewhere,
        "hub_id": made.parts[0].identity.hub_id.hex(),
        "file": str(out),
        "size": len(data),
    }
    output.facts(shown, asked.as_json)


@options_command(
    HubOptions,
    app,
    "replay",
    "veen query replay q-5f1c… --tables tables --client auditor",
    "veen query replay q-5f1c… --tables tables --source http://127.0.0.1:37412 --trust online.json",
)
def replay(
    asked: HubOptions,
    query_id: Annotated[str, argument("QUERY_ID", "id of a query in the log, or of an imported one")],
    tables: TablesDir,
    source: Source = None,
    trust: Trust = None,
) -> None:
    """Run a recorded query again on these tables and compare the digests.

    A query that came over an air gap runs on the imported events: if the digests agree, this zone has the same history
    as the other one, as far as the query reaches. The exit status is 4 if they differ.
    """
    settings = Settings(Path(), tables, source=source, keys=_keys(asked), identities=identities(trust))

    async def work(client: Client) -> ReplayedQuery:
        return await again(client, execution_of(client, settings), query_id)

    found = asked.call().run(work)
    then, now = found.found.digest, found.result.digest
    shown = {
        "query_id": then.query_id,
        "recorded_hub_id": then.hub_id,
        "recorded_row_count": then.row_count,
        "row_count": now.row_count,
        "recorded_rows_hash": then.rows_hash,
        "rows_hash": now.rows_hash,
        "recorded_evidence_hash": then.evidence_hash,
        "evidence_hash": now.evidence_hash,
    }
    verdict = Marked("the digests agree", Tone.GOOD)
    if not found.agrees:
        verdict = Marked(f"the digests differ in {', '.join(found.differences)}", Tone.BAD)
    data = {**shown, "agrees": found.agrees, "differences": found.differences}
    Result(data, facts=[*shown, ("verdict", lambda _: verdict)]).show(asked.as_json)
    if not found.agrees:
        raise typer.Exit(_UNVERIFIED_STATUS)
