from __future__ import annotations

from support.live_router import live_router
from support.scripted_engine import ScriptedEngine, ScriptedEngineClient


def test_the_one_model_is_listed_with_its_window(rig, engine_info):
    listed = rig.http.get("/v1/models").json()
    assert listed["object"] == "list"
    [card] = listed["data"]
    assert card["id"] == "glm"
    assert card["max_model_len"] == engine_info.max_model_len
    assert rig.http.get("/v1/models/glm").json() == card


def test_other_models_are_not_found(rig):
    response = rig.http.get("/v1/models/other")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_name_may_hold_slashes():
    client = ScriptedEngineClient(ScriptedEngine())
    with live_router([client], model_name="org/name") as router:
        assert router.http.get("/v1/models/org/name").json()["id"] == "org/name"
