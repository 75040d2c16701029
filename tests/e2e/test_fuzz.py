"""A fuzzer that knows our OpenAPI document meets the real processes: no 5xx."""

from __future__ import annotations

from support.fuzzing import CHECKS, fuzz_settings, fuzzed_routes, name_no_model

routes = fuzzed_routes()
FEW_TOKENS = 3


@routes.parametrize()
@fuzz_settings(15)
def test_no_request_is_a_server_error(server, case):
    # A valid request may ask for the whole window, which would take the time of all others.
    if isinstance(case.body, dict) and "max_tokens" not in case.body:
        case.body |= {"max_tokens": FEW_TOKENS}
    name_no_model(case)
    case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=60)
