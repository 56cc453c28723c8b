"""The nine operation profiles, their rules and their validators. 001, spec-3.

`operation_events` defines the bodies, `operation_index` lists every operation by its id. `payment`, `access`,
`delegation`, `agreement`, `publication`, `state_statement`, `recovery`, `query_audit` and `mirror` each fold one
profile and check its rules. `rule_checks` runs all checks on a log, with facts from outside the log (`rules`).
"""

from veen.overlays.operations.access import ACCESS
from veen.overlays.operations.agreement import AGREEMENTS
from veen.overlays.operations.delegation import DELEGATIONS
from veen.overlays.operations.mirror import MIRRORS
from veen.overlays.operations.operation_index import OPERATIONS
from veen.overlays.operations.payment import PAYMENTS
from veen.overlays.operations.publication import PUBLICATIONS
from veen.overlays.operations.query_audit import QUERY_AUDITS
from veen.overlays.operations.recovery import RECOVERIES
from veen.overlays.operations.state_statement import SNAPSHOTS

OPERATION_OVERLAYS = (
    OPERATIONS,
    PAYMENTS,
    ACCESS,
    DELEGATIONS,
    AGREEMENTS,
    PUBLICATIONS,
    SNAPSHOTS,
    RECOVERIES,
    QUERY_AUDITS,
    MIRRORS,
)
