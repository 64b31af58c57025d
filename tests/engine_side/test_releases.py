from __future__ import annotations

import pytest

from specctl.engine.releases import ALLOW_ENV, TESTED, untested_reason


@pytest.mark.parametrize("engine", sorted(TESTED))
def test_tested_releases_pass_with_any_local_part(engine: str) -> None:
    for release in TESTED[engine]:
        assert untested_reason(engine, release) is None
        assert untested_reason(engine, f"{release}+cpu") is None


@pytest.mark.parametrize("version", ["0.34.0", "0.31.0", "0.33.1rc1.dev4+g1a2b3c", "0.33.0.post1", "", "x"])
def test_others_do_not_and_the_reason_names_the_option(version: str) -> None:
    reason = untested_reason("vllm", version)
    assert reason is not None
    assert "0.33.0" in reason
    assert ALLOW_ENV in reason
    assert untested_reason("vllm", version, "allow") is None


def test_the_environment_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_ENV, "allow")
    assert untested_reason("sglang", "0.6.0") is None
