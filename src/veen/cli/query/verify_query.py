"""`veen query verify` and `replay`: believing neither the service nor the other zone."""

from typing import TYPE_CHECKING, Annotated

import typer

from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import options_command
from veen.cli.query.query_options import AsksBoth, Source, TablesDir, Trust, app, remote

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.query.answer_verify import AnswerVerified, ReplayedQuery

_UNVERIFIED_STATUS = 4


@options_command(
    AsksBoth,
    app,
    "verify",
    "veen query verify r-5f1c… --service http://127.0.0.1:37420 --token-file token --client auditor",
)
def verify(
    asked: AsksBoth,
    result_id: Annotated[str, typer.Argument(metavar="RESULT_ID", help="as veen query submit shows it")],
) -> None:
    """Hold a result against the log, without believing the service.

    The rows must come to the digest, the digest and the query must be in the log of the hub where the service says, and
    the receipts that it verified must be the hub's.
    """
    from veen.query import answer_verify

    with remote(asked) as service:
        whole, summary = service.result(result_id), service.evidence(result_id)
        value, request = service.descriptor(whole.digest.query_id)
    descriptor = answer_verify.descriptor_of(value)
    answer_verify.check_rows(descriptor, whole, summary)
    call = asked.call()

    async def work(client: "Client") -> "AnswerVerified":
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
    held = "rows, evidence, the query and the digest in the log"
    output.facts({**shown, "verified": Marked(held, Tone.GOOD)}, asked.as_json, {**shown, "verified": True})


@options_command(
    HubOptions,
    app,
    "replay",
    "veen query replay q-5f1c… --tables tables --client auditor",
    "veen query replay q-5f1c… --tables tables --source http://127.0.0.1:37412 --trust online-papers",
)
def replay(
    asked: HubOptions,
    query_id: Annotated[str, typer.Argument(metavar="QUERY_ID", help="of a query in the log, or an imported one")],
    tables: TablesDir,
    source: Source = None,
    trust: Trust = None,
) -> None:
    """Ask a recorded query again, here, and compare the digests.

    Of a query that came over an air gap, the imported events are asked: where both agree, this zone has the history
    that the other had, as far as the query reaches. Where they do not, the exit status is 4.
    """
    from pathlib import Path

    from veen.cli.kit.context_file import need_client
    from veen.cli.query.serve import identities
    from veen.pipeline.decoding import Keys
    from veen.query.answer_verify import replay as again
    from veen.query.query_server import Settings, execution_of

    passphrase = None if asked.passphrase_file is None else str(asked.passphrase_file)
    keys = Keys((str(need_client(asked.client)),), passphrase)
    settings = Settings(Path(), tables, source=source, keys=keys, identities=identities(trust))
    call = asked.call()

    async def work(client: "Client") -> "ReplayedQuery":
        return await again(client, execution_of(client, settings), query_id)

    _tell(call.run(work), asked.as_json)


def _tell(found: "ReplayedQuery", as_json: bool) -> None:
    then, now = found.found.digest, found.result.digest
    verdict = Marked("the digests agree", Tone.GOOD)
    if not found.agrees:
        verdict = Marked(f"they differ in {', '.join(found.differences)}", Tone.BAD)
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
