"""The OpenAPI description matches the service, as tested with schemathesis."""

import json
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.query.query_fixture import PATIENCE_S, QuerySetup
from tools import query_openapi_page
from veen.query import query_app
from veen.query.query_errors import QueryCode

SCHEMA = schemathesis.openapi.from_dict(json.loads(query_app.openapi_text()))
SCHEMA.config.checks.negative_data_rejection.expected_statuses.append("413")
Operation = APIOperation[Any, Any, Any, Any]
OPERATIONS: list[Operation] = [found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)]
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance, negative_data_rejection]


def test_the_committed_description_is_current() -> None:
    assert query_openapi_page.PAGE.read_text("utf-8") == query_app.openapi_text()
    assert query_openapi_page.main(["--check"]) == 0


def test_the_service_serves_it(shared: QuerySetup) -> None:
    assert shared.get("/api/openapi.json").json() == query_app.openapi()


def test_it_has_every_path_of_the_specification() -> None:
    told = {(method.upper(), path) for path, methods in query_app.openapi()["paths"].items() for method in methods}
    assert told >= {
        ("POST", "/api/query/submit"),
        ("GET", "/api/query/status/{result_id}"),
        ("GET", "/api/query/result/{result_id}"),
        ("GET", "/api/query/descriptor/{query_id}"),
        ("GET", "/api/openapi.json"),
    }


@dataclass(frozen=True)
class Effort:
    """The number of requests of each kind."""

    examples: int
    derandomize: bool


QUICK = Effort(examples=15, derandomize=True)
THOROUGH = Effort(examples=300, derandomize=False)


def probe(service: QuerySetup, operation: Operation, mode: GenerationMode, effort: Effort) -> int:
    """Send generated requests, check every response, and return their number."""
    count = 0
    known = service.answer(evidence={"mode": "full"})["result_digest"]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=effort.examples,
        derandomize=effort.derandomize,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    def ask(case: Case[Any]) -> None:
        nonlocal count
        count += 1
        if mode is GenerationMode.POSITIVE:
            # Existing ids: random ones would all be not found.
            case.path_parameters = {name: known[name] for name in case.path_parameters or {}}
        headers = {"Authorization": f"Bearer {service.tokens['alice']}"}
        response = case.call(base_url=f"http://127.0.0.1:{service.port}", headers=headers, timeout=PATIENCE_S)
        case.validate_response(response, checks=CHECKS)
        check(response)

    ask()
    return count


def check(response: schemathesis.Response) -> None:
    """No server error, and every error has the documented form."""
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        found = response.json()
        assert set(found) == {"error_code", "message"}
        assert found["error_code"] in set(QueryCode)


def modes(operation: Operation) -> list[GenerationMode]:
    return list(GenerationMode) if operation.body or operation.path_parameters else [GenerationMode.POSITIVE]


CASES = [(operation, mode) for operation in OPERATIONS for mode in modes(operation)]
IDS = [f"{mode.value} {operation.label}" for operation, mode in CASES]


@pytest.mark.parametrize(("operation", "mode"), CASES, ids=IDS)
def test_schemathesis_finds_no_fault(shared: QuerySetup, operation: Operation, mode: GenerationMode) -> None:
    assert probe(shared, operation, mode, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "mode"), CASES, ids=IDS)
def test_schemathesis_finds_no_fault_in_a_long_run(
    shared: QuerySetup, operation: Operation, mode: GenerationMode
) -> None:
    assert probe(shared, operation, mode, THOROUGH)


def test_the_requests_reach_real_results() -> None:
    assert len(OPERATIONS) == 6


def test_the_schema_requires_every_field_of_a_digest() -> None:
    described = query_app.openapi()
    named = {"$ref": "#/components/schemas/ResultDigest", "components": described["components"]}
    validator = jsonschema_rs.Draft202012Validator(named)
    for name in described["components"]["schemas"]["ResultDigest"]["required"]:
        assert any(name in error.message for error in validator.iter_errors({}))
