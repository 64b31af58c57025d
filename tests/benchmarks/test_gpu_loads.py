"""What the benchmarks of whole loads on a GPU make of their measurements."""

import asyncio
import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("tokenizers")

from benchmarks.gpu import phases, rates


def of_phases(autotune, off, two, never):
    return {"0": off, "2": two, "never enabled": never, "autotune": autotune}


def test_the_best_static_setting_is_that_of_all_rounds_and_the_worst_phase_is_named():
    rounds = [
        {"chat 1": of_phases(95.0, 100.0, 90.0, 100.0), "copying 1": of_phases(300.0, 100.0, 310.0, 100.0)},
        {"chat 1": of_phases(97.0, 98.0, 99.0, 100.0), "copying 1": of_phases(320.0, 100.0, 300.0, 101.0)},
    ]
    found = phases.figures(rounds, [0, 2])
    assert found["best static setting"] == {"chat 1": 0, "copying 1": 2}
    assert found["autotune / best static of the phase"]["chat 1"] == {
        "median": 0.97,
        "least": 0.95,
        "most": 0.99,
    }
    assert list(found["worst phase against best static"]) == ["chat 1"]
    assert list(found["worst phase against never enabled"]) == ["chat 1"]
    assert found["best single static setting"] == 2
    assert found["all phases, autotune / best single static, by round"] == [0.988, 1.045]


def test_phases_go_up_through_the_numbers_and_down_again_with_the_other_kind():
    names = [str(phase) for phase in phases.phases([1, 16])]
    assert names == ["copying 1", "chat 16", "copying 16", "chat 1"]


def test_time_per_token_is_that_of_the_requests_between_two_reads():
    before = {"at_s": 1.0, "s": 2.0, "requests": 10.0, "tokens": 100.0}
    after = {"at_s": 3.0, "s": 2.5, "requests": 110.0, "tokens": 500.0}
    assert rates.between(before, after) == {"ms per token": 5.0, "tokens/s": 200.0}
    assert rates.between(before, {**before, "at_s": 2.0}) == {"ms per token": None, "tokens/s": 0.0}


def test_a_rate_is_on_the_envelope_where_autotune_is_as_fast_as_the_best():
    def row(autotune, three, never):
        arms = {"3 drafts": three, "never enabled": never, "autotune": autotune}
        return {arm: {"ms per token": value, "tokens/s": 1.0} for arm, value in arms.items()}

    found = rates.figures([{"1": row(5.0, 5.0, 8.0), "32": row(12.5, 15.0, 12.0)}])
    assert found["rates"]["1"]["best"] == "3 drafts"
    assert found["rates"]["32"] == {
        "ms per token": {"3 drafts": 15.0, "never enabled": 12.0, "autotune": 12.5},
        "best": "never enabled",
        "best / autotune": 0.96,
    }
    assert found["best / autotune, mean"] == 0.98


def test_a_chart_has_a_line_for_each_arm(tmp_path):
    pytest.importorskip("matplotlib")
    rows = {rate: {"ms per token": {"never enabled": 8.0, "autotune": 5.0}} for rate in ("1", "8")}
    rates.write_chart({"rates": rows}, tmp_path / "chart.svg")
    text = (tmp_path / "chart.svg").read_text()
    assert text.startswith("<?xml")
    assert text.count("<path") > 4


def test_requests_arrive_at_the_rate_that_is_asked_for():
    arrived = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            arrived.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    async def run():
        bodies = ({"number": number} for number in itertools.count())
        async with rates.arriving(f"http://127.0.0.1:{server.server_port}", bodies, 100.0, seed=1):
            await asyncio.sleep(1.0)

    try:
        asyncio.run(run())
    finally:
        server.shutdown()
        server.server_close()
    # 100 expected with a standard deviation of 10; a slow machine sends late and never too many.
    assert 20 <= len(arrived) <= 150
