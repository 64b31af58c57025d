"""What the benchmarks of whole loads on a GPU make of their measurements."""

import asyncio
import itertools
import json
import threading
import time

import pytest
from fakes.engine import FakeEngine

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


class Serving(FakeEngine):
    """Completions too: an answer takes 50 ms, and steps run in real time while the block lasts."""

    def __enter__(self):
        self.done, self.answered = threading.Event(), 0
        self.stepping = threading.Thread(target=self._run)
        self.stepping.start()
        return super().__enter__()

    def __exit__(self, *error):
        self.done.set()
        self.stepping.join()
        super().__exit__(*error)

    def _run(self):
        while not self.done.wait(0.02):
            with self.lock:
                self.advance(0.02)

    def metrics(self):
        name = "vllm:request_time_per_output_token_seconds"
        lines = [f"# TYPE {name} histogram", f"{name}_sum {0.01 * self.answered}"]
        lines += [f"{name}_count {self.answered}", super().metrics()]
        tokens = "vllm:generation_tokens_total"
        return "\n".join(lines).replace(tokens, f"# TYPE {tokens} counter\n{tokens}", 1)

    def respond(self, method, path, headers, body):
        if method == "POST":
            time.sleep(0.05)
            with self.lock:
                self.answered += 1
            return 200, b"{}"
        return super().respond(method, path, headers, body)


@pytest.fixture
def urls():
    with Serving() as server, Serving() as other:
        yield [server.url, other.url]


def run(module, monkeypatch, tmp_path, words):
    folder = ["--model", str(tmp_path), "--folder", str(tmp_path / "logs")]
    output = tmp_path / "report.json"
    command = [module.__name__, *folder, "--output", str(output), *map(str, words)]
    monkeypatch.setattr("sys.argv", command)
    module.main()
    return json.loads(output.read_text())


def texts(tmp_path, count, length):
    file = tmp_path / "texts.json"
    file.write_text(json.dumps([[number] * length for number in range(count)]))
    return file


def test_phases_measure_every_arm_of_every_phase(urls, monkeypatch, tmp_path):
    file = texts(tmp_path, 40, 300)
    words = ["--urls", *urls, "--copying", file, "--chat", file, "--requests", 1, 2, "--settings", 0, 2]
    words += ["--rounds", 2, "--phase-s", 1.0, "--fill-s", 0.2, "--static-s", 0.2, "--few-times", 1]
    found = run(phases, monkeypatch, tmp_path, words)
    assert len(found["rounds"]) == 2
    for one in found["rounds"]:
        assert list(one["tokens/s"]) == ["copying 1", "chat 2", "copying 2", "chat 1"]
        for row in one["tokens/s"].values():
            assert set(row) == {"0", "2", "never enabled", "autotune"}
    # On a busy machine a hold of a fifth of a second may see no step.
    assert (
        max(rate for one in found["rounds"] for row in one["tokens/s"].values() for rate in row.values()) > 0
    )
    assert found["figures"]["asked"]["best static"] == 0.97
    assert (tmp_path / "logs" / "round-2" / "audit.jsonl").exists()


def test_rates_measure_every_arm_at_every_rate(urls, monkeypatch, tmp_path):
    words = ["--urls", *urls, "--texts", texts(tmp_path, 40, 400), "--rates", 20, 40, "--constants", 0, 2]
    words += ["--rounds", 1, "--rate-s", 1.0, "--fill-s", 0.3, "--chart", tmp_path / "chart.svg"]
    found = run(rates, monkeypatch, tmp_path, words)
    for row in found["figures"]["rates"].values():
        assert set(row["ms per token"]) == {"0 drafts", "2 drafts", "never enabled", "autotune"}
        assert row["best / autotune"] == pytest.approx(1.0)
    assert (tmp_path / "chart.svg").exists()


def test_requests_arrive_at_the_rate_that_is_asked_for():
    async def arrivals(url):
        async with rates.arriving(url, itertools.repeat({}), 50.0, seed=1):
            await asyncio.sleep(1.0)

    with Serving() as server:
        asyncio.run(arrivals(server.url))
        # 50 expected with a standard deviation of 7; a slow machine answers late and never too many.
        assert 10 <= server.answered <= 80
