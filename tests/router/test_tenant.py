"""Whom work is charged to."""

from __future__ import annotations

import pytest

from trnrt_router.tenant import tenant_of


def test_key_comes_before_the_session_and_is_not_told() -> None:
    headers = {"authorization": "Bearer sk-secret"}
    tenant = tenant_of("s", headers)
    assert tenant == tenant_of(None, headers) == tenant_of("other", headers)
    assert tenant != tenant_of("s", {"authorization": "Bearer sk-other"})
    assert "secret" not in tenant


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer  ", "Basic dXNlcjpwdw==", "sk-1"])
def test_session_is_the_tenant_where_no_key_is_given(header: str) -> None:
    headers = {"authorization": header}
    assert tenant_of("s", headers) == tenant_of("s", {}) != tenant_of("t", {})
    assert tenant_of(None, headers) == tenant_of("", headers) == ""


def test_key_and_session_of_one_spelling_are_two_tenants() -> None:
    assert tenant_of(None, {"authorization": "bearer x"}) != tenant_of("x", {})


def test_any_text_has_a_name() -> None:
    assert tenant_of("\udc80\u20ac" * 100, {}).isascii()
