"""A query asked again, here: of the same part of the same log, wherever it is now. 001, query-api-spec §9.1.

If the digest that comes out agrees with the one that was recorded, then this zone sees the history that the other saw,
as far as the query reaches. What does not agree is told by name.
"""

from dataclasses import dataclass

from veen.client.client import Client
from veen.core import Unavailable, naming
from veen.query.descriptor import Descriptor
from veen.query.digest import ResultDigest
from veen.query.execution import Execution, Result
from veen.query.origins import origins_of
from veen.query.recording import REQUESTS, RESULTS, requests, results
from veen.query.store import Recorded


@dataclass(frozen=True, slots=True)
class Found:
    """A query and its digest as the log here has them: of this hub's own, or imported."""

    descriptor: Descriptor
    digest: ResultDigest
    request: Recorded
    result: Recorded


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was recorded, and what comes out here."""

    found: Found
    result: Result
    differences: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return not self.differences


async def find(client: Client, query_id: str) -> Found:
    """A recorded query. Raises `Unavailable` where the log has it not, or has no digest of it."""
    came = await origins_of(client)
    pairs = [(REQUESTS, RESULTS)]
    for asked in came.streams:
        if asked.stream == REQUESTS:
            told = [one.here for one in came.streams if (one.stream, one.hub_id) == (RESULTS, asked.hub_id)]
            pairs += [(asked.here, one) for one in told]
    for stream, results_stream in pairs:
        if any(client.dir.stream_keys.secret(naming.stream_id(one)) is None for one in (stream, results_stream)):
            continue
        request = next((one for one in await requests(client, stream) if one.descriptor.query_id == query_id), None)
        if request is None:
            continue
        digest = (await results(client, results_stream)).get(query_id)
        if digest is not None:
            return Found(request.descriptor, digest[0], request.recorded, digest[1])
        raise Unavailable(f"{stream} has query {query_id}, and {results_stream} has no digest of it")
    raise Unavailable(f"the log has no query {query_id} that can be read here")


async def replay(client: Client, execution: Execution, query_id: str) -> Replayed:
    """Ask again what was asked, up to where the streams had got then."""
    found = await find(client, query_id)
    hub_id = bytes.fromhex(found.digest.hub_id)
    bounds = {one.label: one.seq for one in found.digest.basis}
    await execution.refresh()
    of_hub = None if hub_id == client.hub_id else hub_id
    result = await execution.run(found.descriptor, of_hub=of_hub, bounds=bounds)
    return Replayed(found, result, found.digest.differences(result.digest))
