"""A fuzzer that knows our OpenAPI document meets the real processes: no 5xx."""

from __future__ import annotations

from support.fuzzing import CHECKS, fuzz_settings, fuzzed_routes, name_no_model

routes = fuzzed_routes()
FEW_TOKENS, FEW_CHOICES = 3, 2


@routes.parametrize()
@fuzz_settings(15, with_listed_cases=False)
def test_no_request_is_a_server_error(server, case):
    name_no_model(case)
    if isinstance(case.body, dict):
        ask_for_little(case.body)
    case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=60)


def ask_for_little(body: dict[str, object]) -> None:
    """Cap what a valid request may cost: one for the whole window would take minutes."""
    for name, most in (
        ("max_tokens", FEW_TOKENS),
        ("max_completion_tokens", FEW_TOKENS),
        ("n", FEW_CHOICES),
    ):
        value = body.get(name)
        if isinstance(value, int | float) and value > most:
            body[name] = most
    if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        body["max_tokens"] = FEW_TOKENS
