from __future__ import annotations


def test_liveness_does_not_depend_on_engines(rig):
    for client in rig.clients:
        rig.router.call(client.kill)
    assert rig.http.get("/health").json() == {"status": "ok"}


def test_one_ready_engine_is_enough_once_running(rig):
    assert rig.http.get("/ready").status_code == 200
    rig.router.call(rig.clients[0].kill)
    reply = rig.http.get("/ready")
    assert reply.status_code == 200
    assert reply.json()["engines"] == {"0": "lost", "1": "ready"}


def test_no_engine_is_not_ready_and_says_why(rig):
    rig.router.call(rig.clients[0].kill)
    rig.router.call(rig.clients[1].set_loading, "reading weights, 40 %")
    reply = rig.http.get("/ready")
    assert reply.status_code == 503
    assert reply.json()["ready"] is False
    assert "reading weights, 40 %" in reply.json()["detail"]


def test_draining_is_not_ready(rig):
    rig.router.service.is_draining = True
    assert rig.http.get("/ready").status_code == 503
    assert rig.http.get("/health").status_code == 200
