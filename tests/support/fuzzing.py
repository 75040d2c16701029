"""Requests made from our OpenAPI document, valid ones and broken ones."""

from __future__ import annotations

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from trnrt_router.openapi import openapi_document

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


def fuzzed_routes() -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_dict(openapi_document())


def fuzz_settings(max_examples: int, *, with_listed_cases: bool = True) -> settings:
    """The same cases at every run, within a bounded time.

    Args:
        with_listed_cases: also the hundreds that the fuzzer lists one by one from the document.
    """
    phases = (Phase.explicit, Phase.generate) if with_listed_cases else (Phase.generate,)
    return settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )


def name_no_model(case: schemathesis.Case) -> None:
    """Let a valid request pass: nearly every name the fuzzer invents would be a 404."""
    if isinstance(case.body, dict):
        case.body.pop("model", None)
