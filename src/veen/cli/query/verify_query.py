"""`veen query verify` and `replay`: verify results without trusting the service or the other zone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.context_file import need_client
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import options_command
from veen.cli.query.query_options import ServiceAndHubOptions, Source, TablesDir, Trust, app, remote
from veen.cli.query.serve import identities
from veen.client.client import Client

if TYPE_CHECKING:
    from veen.query.answer_verify import AnswerVerified, ReplayedQuery

_UNVERIFIED_STATUS = 4


@options_command(
    ServiceAndHubOptions,
    app,
    "verify",
    "veen query verify r-5f1c… --service http://127.0.0.1:37420 --token-file token --client auditor",
)
def verify(
    asked: ServiceAndHubOptions,
    result_id: Annotated[str, typer.Argument(metavar="RESULT_ID", help="the id from veen query submit")],
) -> None:
    """Verify a result against the log, without trusting the service.

    The rows must match the digest. The digest and the query must be in the hub's log at the places that the service
    names, and the receipts in the evidence must be the hub's.
    """
    from veen.query import answer_verify

    with remote(asked) as service:
        whole, summary = service.result(result_id), service.evidence(result_id)
        value, request = service.descriptor(whole.digest.query_id)
    descriptor = answer_verify.descriptor_of(value)
    answer_verify.check_rows(descriptor, whole, summary)
    call = asked.call()

    async def work(client: Client) -> "AnswerVerified":
        return await answer_verify.check_log(client, descriptor, request, whole, summary)

    found = call.run(work)
    shown: dict[str, output.Value] = {
        "query_id": whole.digest.query_id,
        "result_id": result_id,
        "rows": found.rows,
        "rows_hash": whole.digest.rows_hash,
        "request": request.receipt_id,
        "result": whole.recorded.receipt_id,
        "receipts": found.receipts,
        "receipts_elsewhere": found.elsewhere,
    }
    checks = "rows, evidence, the query and the digest in the log"
    output.facts({**shown, "verified": Marked(checks, Tone.GOOD)}, asked.as_json, {**shown, "verified": True})


@options_command(
    HubOptions,
    app,
    "replay",
    "veen query replay q-5f1c… --tables tables --client auditor",
    "veen query replay q-5f1c… --tables tables --source http://127.0.0.1:37412 --trust online.json",
)
def replay(
    asked: HubOptions,
    query_id: Annotated[
        str, typer.Argument(metavar="QUERY_ID", help="id of a query in the log, or of an imported one")
    ],
    tables: TablesDir,
    source: Source = None,
    trust: Trust = None,
) -> None:
    """Run a recorded query again on these tables and compare the digests.

    A query that came over an air gap runs on the imported events: if the digests agree, this zone has the same history
    as the other one, as far as the query reaches. The exit status is 4 if they differ.
    """
    from veen.pipeline.decoding import Keys
    from veen.query.answer_verify import replay as again
    from veen.query.query_server import Settings, execution_of

    passphrase = None if asked.passphrase_file is None else str(asked.passphrase_file)
    keys = Keys((str(need_client(asked.client)),), passphrase)
    settings = Settings(Path(), tables, source=source, keys=keys, identities=identities(trust))
    call = asked.call()

    async def work(client: Client) -> "ReplayedQuery":
        return await again(client, execution_of(client, settings), query_id)

    _show(call.run(work), asked.as_json)


def _show(found: "ReplayedQuery", as_json: bool) -> None:
    then, now = found.found.digest, found.result.digest
    verdict = Marked("the digests agree", Tone.GOOD)
    if not found.agrees:
        verdict = Marked(f"the digests differ in {', '.join(found.differences)}", Tone.BAD)
    shown: dict[str, output.Value] = {
        "query_id": then.query_id,
        "recorded_hub_id": then.hub_id,
        "recorded_row_count": then.row_count,
        "row_count": now.row_count,
        "recorded_rows_hash": then.rows_hash,
        "rows_hash": now.rows_hash,
        "recorded_evidence_hash": then.evidence_hash,
        "evidence_hash": now.evidence_hash,
    }
    data = {**shown, "agrees": found.agrees, "differences": list(found.differences)}
    output.facts({**shown, "verdict": verdict}, as_json, data)
    if not found.agrees:
        raise typer.Exit(_UNVERIFIED_STATUS)
