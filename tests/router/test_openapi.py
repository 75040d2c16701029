from __future__ import annotations

import re

import pytest

from support.fuzzing import CHECKS, fuzz_settings, fuzzed_routes, name_no_model
from support.live_router import live_router
from support.scripted_engine import Script, ScriptedEngine, ScriptedEngineClient
from trnrt_router.app import create_app

routes = fuzzed_routes()


@pytest.fixture(scope="module")
def url(words, engine_info):
    engine = ScriptedEngine(
        info=engine_info,
        script=Script(steps=[*words.tokens("a</think>b"), [words.eos]], repeat=True),
        step_s=0.0,
    )
    with live_router([ScriptedEngineClient(engine)]) as router:
        yield router.url


def test_every_route_but_the_document_itself_is_in_it(rig):
    served = {
        (re.sub(r"\{[^}]*\}", "{id}", route.path), method.lower())
        for route in create_app(rig.router.service).routes
        for method in route.methods - {"OPTIONS"}
    }
    documented = {
        (path, method)
        for path, methods in rig.http.get("/openapi.json").json()["paths"].items()
        for method in methods
    }
    assert served - documented == {("/openapi.json", "get")}
    assert documented <= served


@routes.parametrize()
@fuzz_settings(60)
def test_no_request_is_a_server_error(url, case):
    name_no_model(case)
    case.call_and_validate(base_url=url, checks=CHECKS, timeout=30)
