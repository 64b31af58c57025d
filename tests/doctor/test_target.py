"""Planted mistakes on servers that speak the real protocol."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any

import pytest
from fakes.engine import COPYING, RANDOM_TEXT, Cost, FakeEngine, Traffic
from fakes.http_server import FakeServer

from specctl.cli.main import main
from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import TablePut, TableRow, uniform_rows
from specctl.doctor import measured, seen, target_checks
from specctl.engine.ranks import Adoption


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "POLL_S", 0.05)


def doctor(url: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    code = main(["doctor", url, "--json", "--window", "0.2", *more])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == int(any(finding["severity"] == "error" for finding in report["findings"]))
    return report


def closed() -> str:
    """URL of a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def codes(report: dict[str, Any]) -> list[str]:
    return sorted(finding["code"] for finding in report["findings"] if finding["severity"] != "note")


class Changed(FakeEngine):
    """With other capabilities than the fake's own."""

    def __init__(self, changes: dict[str, Any], **more: Any) -> None:
        self.changes = changes
        super().__init__(**more)

    def capabilities(self) -> Any:
        return super().capabilities().model_copy(update=self.changes)


def put(owner: str, tokens: int = 3, lease_s: float | None = 10.0, **more: Any) -> TablePut:
    return TablePut(
        base_version=0,
        rows=uniform_rows(tokens),
        lease_s=lease_s,
        fallback_num_speculative_tokens=0,
        owner=owner,
        **more,
    )


def test_nothing_is_found_on_a_healthy_server(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(start_tokens=4) as engine:
        engine.advance(60.0)
        before = engine.version
        report = doctor(engine.url, capsys, "--policy", "balanced")
        assert engine.version == before
        assert not engine.puts
    assert report["healthy"]
    assert report["findings"] == []
    assert "acceptance" in report["checked"]
    assert "policy" in report["checked"]


def test_without_traffic_acceptance_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(start_tokens=4) as engine:
        report = doctor(engine.url, capsys)
    assert report["healthy"]
    assert any("acceptance" in words for words in report["skipped"])


def test_unreachable_and_locked(capsys: pytest.CaptureFixture[str]) -> None:
    assert codes(doctor(closed(), capsys)) == ["unreachable"]
    with FakeEngine(token="secret") as engine:
        assert codes(doctor(engine.url, capsys)) == ["access"]


def test_without_the_plugin_and_without_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(has_plugin=False) as engine:
        assert codes(doctor(engine.url, capsys)) == ["plugin-not-loaded"]
        engine.forced_status["/metrics"] = 404
        assert codes(doctor(engine.url, capsys)) == ["metrics-off", "plugin-not-loaded"]


def test_what_is_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(has_plugin=False) as engine:
        engine.forced_status |= {"/metrics": 404, "/version": 404}
        assert codes(doctor(engine.url, capsys)) == ["no-engine"]
        assert main(["recommend", engine.url]) == 1


def test_a_server_that_did_not_ask(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        engine.forced_status["/specctl/v1/capabilities"] = 503
        engine.forced_body = b'{"error": "not_steered", "message": "started without specctl"}'
        assert codes(doctor(engine.url, capsys)) == ["plugin-not-asked"]


def test_versions(capsys: pytest.CaptureFixture[str]) -> None:
    with Changed({"engine_version": "0.31.0"}) as engine:
        assert codes(doctor(engine.url, capsys)) == ["engine-untested"]
    with Changed({"contract_version": 99}) as engine:
        assert codes(doctor(engine.url, capsys)) == ["contract-differs"]


def test_what_cannot_be_steered(capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"controllable": False, "why_not_controllable": "a mixture of experts"}
    with Changed(changes) as engine:
        assert codes(doctor(engine.url, capsys)) == ["not-controllable"]


def test_the_first_model_runner_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with Changed({"gpu": "NVIDIA H200", "has_shadow_acceptance": True}) as engine:
        assert codes(doctor(engine.url, capsys)) == ["runner-v1"]


@pytest.mark.parametrize(
    ("method", "severity", "cause"),
    [
        ("eagle3", "error", "a head of another target"),
        ("ngram", "warning", "repeats nothing"),
        ("draft_model", "warning", "tokenizer"),
    ],
)
def test_acceptance_near_zero(
    method: str, severity: str, cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Changed({"method": method}, start_tokens=4, traffic=RANDOM_TEXT) as engine:
        engine.advance(60.0)
        report = doctor(engine.url, capsys)
    (found,) = [one for one in report["findings"] if one["code"] == "acceptance-near-zero"]
    assert found["severity"] == severity
    assert cause in found["what"] + found["do"]


def test_a_weak_head(capsys: pytest.CaptureFixture[str]) -> None:
    traffic = Traffic(accept_at=(0.4,) * 8)
    with Changed({"method": "eagle3"}, start_tokens=4, traffic=traffic) as engine:
        engine.advance(60.0)
        assert "acceptance-low" in codes(doctor(engine.url, capsys))


def test_acceptance_of_a_stock_server(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(start_tokens=4, traffic=RANDOM_TEXT, has_plugin=False) as engine:
        engine.advance(60.0)
        assert codes(doctor(engine.url, capsys)) == ["acceptance-near-zero", "plugin-not-loaded"]


DEAR = Cost(constant_s=0.02, token_s=0.02)


def test_slower_than_off_by_sampled_steps(capsys: pytest.CaptureFixture[str]) -> None:
    traffic = Traffic(accept_at=(0.3,) * 8)
    with FakeEngine(start_tokens=4, traffic=traffic, cost=DEAR) as engine:
        off = RowSample(setting=Setting(num_speculative_tokens=0), every_steps=4)
        row = TableRow(decode_batch_from=1, num_speculative_tokens=4, sample=off)
        change = put("me", lease_s=None).model_copy(update={"rows": (row,)})
        engine.live.adopt(Adoption(decider="me", version=engine.version + 1, change=change))
        engine.advance(60.0)
        report = doctor(engine.url, capsys)
    assert "slower-than-off" in codes(report)
    assert "steps" in next(one["seen"] for one in report["findings"] if one["code"] == "slower-than-off")


class Passing(FakeEngine):
    """Time passes with every request."""

    def respond(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        if path.endswith("telemetry"):
            self.advance(3.0)
        return super().respond(method, path, headers, body)


@pytest.mark.parametrize(("cost", "found"), [(DEAR, ["slower-than-off"]), (Cost(), [])])
def test_slower_than_off_by_measurement(
    cost: Cost, found: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specctl.doctor.command.MEASURE_S", 0.6)
    traffic = Traffic(accept_at=(0.6,) * 8)
    with Passing(start_tokens=6, traffic=traffic, cost=cost) as engine:
        report = doctor(engine.url, capsys, "--measure")
        assert codes(report) == found
        assert "speed against no drafts" in report["checked"]
        assert engine.tokens_at(1) == 6
        assert engine.lease_s is None


def test_a_measurement_leaves_anothers_lease_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(start_tokens=6) as engine:
        engine.put(put("autotune x").model_dump_json().encode())
        report = doctor(engine.url, capsys, "--measure")
        assert engine.owner == "autotune x"
    assert any("leased by 'autotune x'" in words for words in report["skipped"])
    assert measured.PAIRS == 6


def test_two_writers_within_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    class Fought(FakeEngine):
        reads = 0

        def respond(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
            self.reads += path.endswith("table")
            if path.endswith("table"):
                self.operator_puts(put("autotune a" if self.reads % 2 else "autotune b"))
            return super().respond(method, path, headers, body)

    with Fought() as engine:
        assert codes(doctor(engine.url, capsys)) == ["two-daemons"]


class Daemon(FakeServer):
    def __init__(self, page: str) -> None:
        self.page = page

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        return 200, self.page.encode()


def test_two_daemons_by_the_word_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        engine.put(put("autotune other").model_dump_json().encode())
        page = (
            f'specctl_target_up{{target="{engine.url}"}} 1\nspecctl_lease_held{{target="{engine.url}"}} 0\n'
        )
        with Daemon(page) as daemon:
            assert codes(doctor(engine.url, capsys, "--daemon", daemon.url)) == ["two-daemons"]
        with Daemon("specctl_policy_valid 0\n") as daemon:
            assert codes(doctor(engine.url, capsys, "--daemon", daemon.url)) == ["daemon-elsewhere"]
        assert codes(doctor(engine.url, capsys, "--daemon", closed())) == ["daemon-unreachable"]


def test_a_daemon_that_died(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(start_tokens=4) as engine:
        engine.put(put("autotune x", lease_s=1.0).model_dump_json().encode())
        engine.advance(5.0)
        assert codes(doctor(engine.url, capsys)) == ["lease-ran-out"]


def test_a_policy_that_cannot_act(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("kind: goodput\nknobs: {num_speculative_tokens: {min: 5, max: 6}}\n")
    with FakeEngine(start_tokens=4, legal=(0, 2, 4)) as engine:
        engine.advance(30.0)
        assert codes(doctor(engine.url, capsys, "--policy", str(path))) == ["policy-cannot-act"]


def test_failures_and_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        engine.failures = {"propose": 3}
        engine.ranks_behind = (1,)
        assert codes(doctor(engine.url, capsys)) == ["plugin-failed", "ranks-behind"]


def test_a_full_kv_cache(capsys: pytest.CaptureFixture[str]) -> None:
    class Full(FakeEngine):
        def metrics(self) -> str:
            labels = '{engine="0",model_name="g"}'
            page = super().metrics().replace(f"usage_perc{labels} 0.1", f"usage_perc{labels} 0.99")
            return page.replace(f"requests_waiting{labels} 0.0", f"requests_waiting{labels} 7.0")

    with Full() as engine:
        report = doctor(engine.url, capsys)
    assert codes(report) == ["kv-cache-full"]
    assert "--max-num-seqs" in report["findings"][0]["do"]


def test_clocks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "_wall_s", lambda: time.time() - 90.0)
    with FakeEngine() as engine:
        report = doctor(engine.url, capsys)
    assert codes(report) == ["clocks-differ"]
    assert "90 s ahead" in report["findings"][0]["seen"]
    assert target_checks.CLOCK_S < 90


def test_warnings_of_the_server_are_notes(capsys: pytest.CaptureFixture[str]) -> None:
    words = "while a request with a temperature over 0 is in the engine, nothing is drafted"
    with Changed({"warnings": (words,)}, traffic=COPYING) as engine:
        report = doctor(engine.url, capsys)
    assert report["healthy"]
    assert [finding["code"] for finding in report["findings"]] == ["engine-warning"]
    assert report["findings"][0]["do"] == "requests with temperature 0 are not affected"
