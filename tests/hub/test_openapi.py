"""The OpenAPI description matches the hub, and schemathesis finds no fault in it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.core.wire_strategies import wire_objects
from tests.hub.client import PATIENCE_S, Hub, Reply, make_dir, running
from tests.hub.disks import QuickDisk
from tools import openapi_page
from veen.core import wire_json
from veen.core.cbor import Wire
from veen.core.envelopes import ErrorEnvelope
from veen.hub import hub_openapi
from veen.hub.hub_openapi import ENDPOINTS, ApiEndpoint

DESCRIPTION: dict[str, Any] = hub_openapi.describe()
SCHEMA = schemathesis.openapi.from_dict(json.loads(openapi_page.page()))
# A body that is too large is not read, so other faults in it are not reported.
SCHEMA.config.checks.negative_data_rejection.expected_statuses.append("413")
Operation = APIOperation[Any, Any, Any, Any]
OPERATIONS: list[Operation] = [found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)]
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
WIRES = sorted(
    hub_openapi._all([])
    | {wire for one in ENDPOINTS for of in (one.request, one.response) for wire in hub_openapi._wires(of)},
    key=str,
)


@schemathesis.serializer("application/cbor", "application/cbor-seq")
def _as_cbor(_: schemathesis.SerializationContext, value: object) -> bytes:
    return value if isinstance(value, bytes) else cbor2.dumps(value)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running(make_dir(tmp_path_factory.mktemp("described")), disk=QuickDisk()) as found:
        found.writer().send_many(3)
        yield found


# The description itself.


def test_the_file_on_disk_is_the_one_that_is_written() -> None:
    assert openapi_page.PAGE.read_bytes().decode() == openapi_page.page()
    assert openapi_page.main(["--check"]) == 0


def test_another_file_is_noticed_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "openapi.json"
    assert openapi_page.main(["--check"], path) == 1
    path.write_text("{}")
    assert openapi_page.main(["--check"], path) == 1
    assert path.read_text() == "{}"
    assert "out of date" in capsys.readouterr().err
    assert openapi_page.main([], path) == 0
    assert openapi_page.main(["--check"], path) == 0


def test_the_hub_serves_it(hub: Hub) -> None:
    assert hub.get("/tooling/openapi.json").json() == json.loads(openapi_page.page())


def test_the_description_lists_every_endpoint_and_no_other(hub: Hub) -> None:
    told = {(one.method.upper(), one.path) for one in ENDPOINTS}
    there = hub.service.app.routes.keys() | {(method, "/tooling/attachments/{coid}") for method in ("GET", "PUT")}
    assert told == there | {("GET", "/tooling/subscribe")}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.path}")
def test_every_described_endpoint_exists(hub: Hub, endpoint: ApiEndpoint) -> None:
    reply = hub.ask(endpoint.method.upper(), endpoint.path.replace("{coid}", "0" * 64))
    missing = reply.status == 404 and "there is no " in reply.error().message
    assert not missing or "{coid}" in endpoint.path


def validator(wire: type[Wire]) -> Any:
    named = {"$ref": f"#/components/schemas/{wire.__name__}", "components": DESCRIPTION["components"]}
    return jsonschema_rs.Draft202012Validator(named)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.__name__)
@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_schema_of_an_object_takes_every_such_object(wire: type[Wire], data: st.DataObject) -> None:
    shown = wire_json.to_json(data.draw(wire_objects(wire)))
    assert list(validator(wire).iter_errors(shown)) == []


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.__name__)
@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_schema_of_an_object_takes_nothing_else(wire: type[Wire], data: st.DataObject) -> None:
    shown = json.loads(json.dumps(wire_json.to_json(data.draw(wire_objects(wire)))))
    check = validator(wire)
    if isinstance(shown, dict):
        assert not check.is_valid({**shown, "unknown": 0})
        for name in DESCRIPTION["components"]["schemas"][wire.__name__]["required"]:
            assert not check.is_valid({key: value for key, value in shown.items() if key != name})
    else:
        assert not check.is_valid([*shown, 0, 0])
        assert not check.is_valid(shown[: len(shown) - 2])
    assert not check.is_valid(None)


# Schemathesis.


@dataclass(frozen=True)
class Effort:
    """The number of requests of each kind."""

    examples: int
    derandomize: bool


def check_operation(hub: Hub, operation: Operation, mode: GenerationMode, effort: Effort) -> None:
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
        response = case.call(base_url=f"http://127.0.0.1:{hub.port}", timeout=PATIENCE_S)
        case.validate_response(response, checks=CHECKS)
        check_envelope(operation.path, response)

    ask()


def check_envelope(path: str, response: schemathesis.Response) -> None:
    """No 500, and every rejection has the same format."""
    assert response.status_code not in (500, 502, 504), response.text
    if response.status_code < 400 or path == "/readyz":
        return
    headers = {name: values[0] for name, values in response.headers.items()}
    error = Reply(response.status_code, headers, response.content).error()
    assert isinstance(error, ErrorEnvelope)


QUICK = Effort(examples=10, derandomize=True)
THOROUGH = Effort(examples=300, derandomize=False)


def modes(operation: Operation) -> list[GenerationMode]:
    """An endpoint without parameters, and with no body or any bytes, cannot be called wrongly."""
    plain = operation.label == "POST /tooling/submit-batch" or not operation.body
    free = plain and not (operation.query or operation.path_parameters)
    return [GenerationMode.POSITIVE] if free else list(GenerationMode)


CASES = [(operation, mode) for operation in OPERATIONS for mode in modes(operation)]
IDS = [f"{mode.value} {operation.label}" for operation, mode in CASES]


@pytest.mark.parametrize(("operation", "mode"), CASES, ids=IDS)
def test_schemathesis_finds_no_fault(hub: Hub, operation: Operation, mode: GenerationMode) -> None:
    check_operation(hub, operation, mode, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "mode"), CASES, ids=IDS)
def test_schemathesis_finds_no_fault_however_long_it_looks(
    hub: Hub, operation: Operation, mode: GenerationMode
) -> None:
    check_operation(hub, operation, mode, THOROUGH)


def test_there_is_something_to_look_at() -> None:
    assert len(OPERATIONS) == len(ENDPOINTS) > 20
