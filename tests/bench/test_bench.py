"""The whole command against servers that stream over the real protocol."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fakes.streaming import StreamingServer

from specctl.bench import judged, main
from specctl.bench.command import bench
from specctl.bench.results import BenchResult
from specctl.cli.main import main as specctl
from specctl.contract.table import TablePut, uniform_rows
from specctl.errors import PolicyError, SpecctlError

QUICK = ["--seconds", "0.5", "--rounds", "3", "--output-tokens", "8", "--outputs", "4"]


def run(*words: str) -> Result:
    return CliRunner().invoke(bench, [*words], standalone_mode=False)


def result_of(done: Result) -> BenchResult:
    if done.exception is not None:
        raise done.exception
    return BenchResult.model_validate_json(done.stdout)


def test_the_faster_setting_is_found_and_the_table_put_back(tmp_path: Path) -> None:
    with StreamingServer() as server:
        before = server.engine.rows
        words = ["--arm", "off", "--arm", "2", "--concurrency", "2", "--save", str(tmp_path / "out")]
        result = result_of(run(server.url, *words, *QUICK, "--json", "--price-per-hour", "3.6"))
        applied = server.engine.live.read()
        assert applied.rows == before
        assert applied.lease_remaining_s is None
        assert {put.lease_s for put in server.engine.puts[:-1]} == {30.0}
    faster = result.comparisons[0]
    assert (faster.arm, faster.baseline) == ("always 2", "off")
    # Twice as fast, on a machine that may be busy.
    assert faster.ratio == pytest.approx(2.0, rel=0.4)
    assert faster.words in result.verdict
    assert [run.place for run in result.runs if run.arm == "off"] == [0, 1, 1]
    assert result.outputs[0].identical == result.outputs[0].compared == 4
    speed = result.figures[0].tokens_per_s
    assert result.figures[0].cost_per_million_tokens == pytest.approx(1000.0 / speed)
    saved = tmp_path / "out"
    assert BenchResult.model_validate_json((saved / "bench.json").read_text()) == result
    page = (saved / "bench.html").read_text()
    assert page.index(faster.words) < page.index("Speed (tokens/s)")
    assert "prefers-color-scheme: dark" in page
    assert "<script" not in page
    assert "| always 2 |" in (saved / "bench.md").read_text()
    written = sorted(path.name for path in saved.glob("vllm-*.json"))
    assert written == ["vllm-always-2-chat--2-at-once.json", "vllm-off-chat--2-at-once.json"]


def test_rounds_are_added_while_an_interval_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "ROUNDS_DEFAULT", 3)
    monkeypatch.setattr(main, "MOST_ROUNDS", 8)
    words = ["--arm", "off", "--arm", "2", "--concurrency", "1", "--requests", "1", "--output-tokens", "2"]
    with StreamingServer() as server:
        for wide, rounds, more in ((0.0, 8, []), (1e9, 3, []), (0.0, 3, ["--rounds", "3"])):
            monkeypatch.setattr(judged, "WIDE_RATIO", wide)
            result = result_of(run(server.url, *words, "--outputs", "0", "--json", *more))
            assert result.rounds == result.comparisons[0].rounds == rounds
            assert {one.round for one in result.runs} == set(range(rounds))


def test_files_that_were_written_can_be_compared(tmp_path: Path) -> None:
    with StreamingServer() as server:
        words = ["--arm", "off", "--arm", "2", "--concurrency", "2", "--save", str(tmp_path)]
        run(server.url, *words, *QUICK[2:], "--requests", "8")
    off, two = (str(tmp_path / f"vllm-{name}-chat--2-at-once.json") for name in ("off", "always-2"))
    words = [word for name, path in (("off", off), ("2", two)) for word in ["--from", f"{name}={path}"] * 3]
    result = result_of(run(*words, "--json"))
    assert result.comparisons[0].ratio == pytest.approx(2.0, rel=0.4)
    assert result.figures[0].ttft is not None
    lines = (tmp_path / "sglang.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["output_throughput"] > 0


def test_two_plain_servers_and_an_open_loop() -> None:
    with StreamingServer(has_plugin=False) as one, StreamingServer(has_plugin=False, step_s=0.08) as other:
        words = ["--name", "one", "--name", "other", "--rate", "10", *QUICK, "--outputs", "0"]
        result = result_of(run(one.url, other.url, *words, "--json"))
    assert result.comparisons[0].ratio < 0.8
    assert result.loads[0].title == "chat, 10 requests/s"
    assert result.runs[0].speed == pytest.approx(1.0 / result.runs[0].e2el.mean_s)


def test_requests_are_unlike_each_other_and_carry_the_sampling() -> None:
    with StreamingServer(has_chat=False) as server:
        sampling = '{"temperature": 0.7, "top_p": 0.9}'
        words = [
            "--arm",
            "off",
            "--arm",
            "2",
            "--concurrency",
            "1",
            "--requests",
            "3",
            "--sampling",
            sampling,
        ]
        result_of(
            run(server.url, *words, "--rounds", "3", "--output-tokens", "4", "--outputs", "2", "--json")
        )
        measured = [body for body in server.bodies if body.get("stream") and body["temperature"] == 0.7]
        greedy = [body for body in server.bodies if body.get("stream") and body["temperature"] == 0.0]
    prompts = [body["prompt"] for body in measured]
    assert len(set(prompts)) == len(prompts)
    assert prompts[0].startswith("[00001] ")
    assert {body["top_p"] for body in measured} == {0.9}
    assert len(greedy) == 4
    assert len({body["prompt"] for body in greedy}) == 2


def test_differing_outputs_are_reported() -> None:
    with StreamingServer() as server:
        server.texts = {2: "v"}
        words = ["--arm", "off", "--arm", "2", "--concurrency", "1", *QUICK]
        done = run(server.url, *words)
    assert "outputs identical 0/4" in done.output
    assert "could not be scored" in done.output


def test_an_error_puts_the_table_back() -> None:
    with StreamingServer() as server:
        server.fails = "out of memory"
        with pytest.raises(SpecctlError, match="out of memory"):
            result_of(run(server.url, "--arm", "off", "--arm", "2", *QUICK))
        assert server.engine.live.read().lease_remaining_s is None


def test_a_table_of_another_owner_is_left_alone() -> None:
    with StreamingServer() as server:
        put = TablePut(base_version=server.engine.version, rows=uniform_rows(2), lease_s=60.0, owner="daemon")
        server.engine.operator_puts(put)
        with pytest.raises(SpecctlError, match=r"leased by 'daemon'.*; stop that daemon first, or wait"):
            result_of(run(server.url, "--arm", "off", "--arm", "2", *QUICK))
        assert server.engine.owner == "daemon"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arm", "3"], "has prepared 0, 2, 4"),
        (["--prompts", "nothing"], "no such file"),
        (["--load", "concurrency=2"], "prompts first"),
        (["--load", "chat concurrency=2 rate=1"], "expected one of"),
        (["--baseline", "table 2"], "expected one of"),
        (["--prompts-once", "--requests", "100"], "too few"),
    ],
)
def test_what_cannot_be_run_is_refused(words: list[str], message: str) -> None:
    with StreamingServer() as server, pytest.raises(SpecctlError, match=message):
        result_of(run(server.url, *words))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--arm", "foo"], 2),
        (["--load", "chat foo=1"], 2),
        (["--name", "a", "--name", "b"], 2),
        (["--baseline", "table 2"], 2),
        (["--arm", "99"], 1),
        (["--prompts", "nothing"], 4),
    ],
)
def test_exit_codes_tell_whose_fault_it_is(words: list[str], code: int) -> None:
    with StreamingServer() as server:
        assert specctl(["bench", server.url, *words]) == code


@pytest.mark.parametrize(
    ("text", "message"),
    [("kind: nothing", "expected"), ("kind: fixed\nname: wrong\nnum_speculative_tokens: all", "integer")],
)
def test_a_wrong_policy_is_refused_before_any_server_is_asked(
    tmp_path: Path, text: str, message: str
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(text, encoding="utf-8")
    with pytest.raises(PolicyError, match=message):
        result_of(run("http://127.0.0.1:9", "--arm", "off", "--arm", f"autotune:{policy}"))


def test_a_server_without_usage_in_each_event_is_counted_by_its_last() -> None:
    with StreamingServer(has_usage=False) as server:
        words = ["--arm", "off", "--arm", "2", "--concurrency", "1", "--requests", "2", "--rounds", "3"]
        result = result_of(run(server.url, *words, "--output-tokens", "16", "--outputs", "0", "--json"))
    assert {run.output_tokens for run in result.runs} == {32}


def test_a_renewal_that_arrives_late_is_no_conflict() -> None:
    with StreamingServer() as server:
        put, late = server.engine.put, []

        def raced(body: bytes) -> tuple[int, dict[str, object]]:
            # Another change of the same owner arrives between the read of the version and the change.
            if not late:
                late.append(1)
                put(body)
            return put(body)

        server.engine.put = raced
        words = ["--arm", "off", "--arm", "2", "--concurrency", "1", "--requests", "1", "--rounds", "3"]
        result_of(run(server.url, *words, "--output-tokens", "4", "--outputs", "0", "--json"))
        assert server.engine.live.read().lease_remaining_s is None


@pytest.mark.parametrize("drafts_from_outputs", [True, False])
def test_a_method_that_drafts_from_earlier_outputs_is_warned_of(drafts_from_outputs: bool) -> None:
    with StreamingServer() as server:
        server.engine.drafts_from_outputs = drafts_from_outputs
        words = ["--arm", "off", "--arm", "2", "--concurrency", "1", "--requests", "1", "--rounds", "3"]
        result = result_of(run(server.url, *words, "--output-tokens", "4", "--outputs", "0", "--json"))
    assert any("earlier requests" in warning for warning in result.warnings) == drafts_from_outputs
