"""Loads, prompts and traces as a user gives them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from specctl.bench.loads import Load, arrivals, parse_load, product, with_lengths
from specctl.bench.prompts import PRESETS, Prompt, load_prompts, numbered, rotated
from specctl.errors import BenchInputError


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_at_least_40_short_prompts(name: str) -> None:
    prompts = load_prompts(name)
    assert len(prompts) >= 40
    assert len({prompt.prompt for prompt in prompts}) == len(prompts)
    assert max(len(prompt.prompt or "") for prompt in prompts) < 2000


def test_kinds_take_turns() -> None:
    ids = [prompt.id for prompt in load_prompts("copying+chat")[:4]]
    assert ids == ["copying/1", "chat/1", "copying/2", "chat/2"]


def test_a_file_of_prompts_and_messages(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    rows = [{"prompt": "p"}, {"id": "x", "messages": messages, "output_tokens": 3}]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    one, two = load_prompts(str(file))
    assert (one.id, one.prompt, two.id, two.output_tokens) == ("1", "p", "x", 3)
    assert numbered(one, "7").prompt == "[7] p"
    changed = numbered(two, "7").messages
    assert changed is not None
    assert [message.content for message in changed] == ["s", "[7] u"]


@pytest.mark.parametrize("text", ["", "{}", '{"prompt": "a", "messages": []}', "no json"])
def test_other_files_are_refused_with_the_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(text)
    with pytest.raises(BenchInputError, match=r"mine\.jsonl"):
        load_prompts(str(file))


def test_rounds_begin_at_other_prompts() -> None:
    prompts = load_prompts("chat")
    firsts = {next(rotated(prompts, number, 6)).id for number in range(6)}
    assert len(firsts) == 6


def test_a_load_in_one_text() -> None:
    load = parse_load("chat+code concurrency=4 output=32 name=both")
    assert load == Load(prompts="chat+code", concurrency=4, max_tokens=32, name="both")
    assert parse_load("chat rate=2.5").title == "chat, 2.5 requests/s"
    assert [one.title for one in product(["sql"], [1, 8], [2.0], [], {})] == [
        "sql, 1 at once",
        "sql, 8 at once",
        "sql, 2 requests/s",
    ]


def test_lengths_are_drawn_alike_for_all_arms_of_a_round() -> None:
    load = parse_load("chat concurrency=4 output=24-96")
    assert (load.min_tokens, load.max_tokens) == (24, 96)
    given = Prompt(prompt="as recorded", output_tokens=7)
    one, again, other = (
        [
            prompt.output_tokens
            for prompt in with_lengths(iter([given, *load_prompts("chat") * 20]), load, seed)
        ]
        for seed in (1, 1, 2)
    )
    assert one == again != other
    assert one[0] == 7
    assert {24, 96} <= set(one[1:]) <= set(range(24, 97))
    short = load.model_copy(update={"max_tokens": 16})
    assert next(with_lengths(iter(load_prompts("chat")), short, 0)).output_tokens == 16
    one_length = parse_load("chat concurrency=4 output=32")
    assert next(with_lengths(iter(load_prompts("chat")), one_length, 0)).output_tokens is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "chat",
        "chat speed=2",
        "chat concurrency=0",
        "chat concurrency",
        "chat x=1",
        "chat concurrency=1 output=9-8",
        "chat concurrency=1 output=0-8",
        "chat concurrency=1 output=-8",
    ],
)
def test_other_loads_are_refused(text: str) -> None:
    with pytest.raises(BenchInputError, match="load"):
        parse_load(text)


def test_poisson_arrivals_are_the_same_for_all_arms_of_a_round() -> None:
    load = Load(prompts="chat", rate_per_s=50.0)
    one, again, other = (list(itertools.islice(arrivals(load, seed), 2000)) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert one[-1][0] / 2000 == pytest.approx(0.02, rel=0.1)


def test_a_trace_gives_times_and_lengths(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("timestamp_s,input_tokens,output_tokens\n5.0,10,20\n4.0,7,\n")
    found = list(arrivals(Load(prompts="chat", trace=str(file), trace_speed=2.0), 0))
    assert found == [(0.0, 7, None), (0.5, 10, 20)]


def test_a_log_gives_arrivals_between_its_readings(tmp_path: Path) -> None:
    def reading(time_s: float, started: int, finished: int, tokens: int) -> dict[str, object]:
        load = {"started_requests": started, "finished_requests": finished, "finished_output_tokens": tokens}
        return {"kind": "reading", "time_s": time_s, "telemetry": None, "load": load}

    header = {
        "kind": "header",
        "format": "specctl telemetry log",
        "version": 1,
        "specctl_version": "0",
        "target": "t",
        "every_s": 1.0,
        "utc": "2026-01-01T00:00:00.000Z",
    }
    rows = [header, reading(0.0, 4, 4, 40), reading(1.0, 7, 6, 80), reading(2.0, 7, 7, 90)]
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(arrivals(Load(prompts="chat", trace=str(file)), 0))
    assert len(found) == 3
    assert {output for _, _, output in found} == {20}


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "timestamp_s\nx\n", "timestamp_s\n"])
def test_other_traces_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(BenchInputError, match="trace"):
        list(arrivals(Load(prompts="chat", trace=str(file)), 0))
