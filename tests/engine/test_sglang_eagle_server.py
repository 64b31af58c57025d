"""A real SGLang on the CPU with stock EAGLE3 under a table, on the reference head: chains, trees and off.

It runs SGLang's overlap scheduler, as a server on a GPU does. NEXTN, EAGLE and STANDALONE have its worker.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pytest
from support.engine_control import CONTROL_TOKEN, READ_TOKEN, wait_for
from support.sglang_control import (
    NEEDS_SGLANG,
    PROMPTS,
    assert_sampled_guarded,
    cells_by_number,
    controlled_sglang_server,
    greedy_while_changing,
    rows,
)

pytestmark = NEEDS_SGLANG
ARGUMENTS = [
    *("--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "3"),
    *("--speculative-num-draft-tokens", "8"),
]


@pytest.fixture(scope="module")
def eagle3(shared_models: Path, logs: Path, token_file: Path):
    """Few numbers, trees of three a depth, a token file."""
    options = {"candidates": [0, 1, 2, 5], "token_file": str(token_file)}
    head = ["--speculative-draft-model-path", str(shared_models / "reference-eagle3")]
    with controlled_sglang_server(
        shared_models / "reference-target", logs / "sglang-eagle3.log", "EAGLE3", [*head, *ARGUMENTS],
        {"SPECCTL_SGLANG_OPTIONS": json.dumps(options), "SPECCTL_SGLANG_CPU_OVERLAP": "1"},
        {"Authorization": f"Bearer {CONTROL_TOKEN}"},
    ) as control:  # fmt: skip
        yield control


@pytest.fixture(scope="module")
def reference(eagle3):
    """Greedy output of the same server without speculation."""
    assert eagle3.put(eagle3.change(0)).status_code == 200
    told = [eagle3.generate(prompt) for prompt in PROMPTS]
    assert {one["meta_info"]["spec_verify_ct"] for one in told} == {31}
    return [one["output_ids"] for one in told]


def emitted_a_step(control, number, since=(0, 0)):
    cells = cells_by_number(control).get(number, [])
    steps = sum(cell["request_steps"] for cell in cells)
    emitted = sum(cell["emitted_tokens"] for cell in cells)
    return (emitted - since[1]) / max(steps - since[0], 1), (steps, emitted)


def test_before_a_table_comes_drafts_are_as_the_server_was_started(eagle3):
    table = eagle3.get("table")
    assert (table["state"], table["rows"][0]["num_speculative_tokens"]) == ("start", 7)
    assert table["rows"][0]["tree_topk"] == 3
    assert len(eagle3.complete(PROMPTS[1], 8)) == 8
    assert sum(cell["steps"] for cell in cells_by_number(eagle3)[7]) > 0


def test_a_server_that_tells_no_load_is_not_recorded(eagle3, tmp_path):
    """Without --enable-metrics, which the message names."""
    command = [str(Path(sys.executable).parent / "specctl"), "record", eagle3.server.url]
    command += ["--token-file", str(tmp_path / "token"), "--output", str(tmp_path / "log")]
    (tmp_path / "token").write_text(READ_TOKEN)
    output = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert output.returncode == 1
    assert "SGLang tells its own with --enable-metrics only" in output.stderr
    assert not (tmp_path / "log").exists()


def test_capabilities_name_what_was_prepared(eagle3):
    told = eagle3.get("capabilities")
    assert (told["method"], told["controllable"]) == ("eagle3", True)
    assert told["num_speculative_tokens_legal"] == [0, 1, 2, 5, 7]
    assert told["tree_topk_legal"] == [1, 3]
    assert "prepared, with the memory of their graphs: 0 drafts" in eagle3.server.log.read_text()


@pytest.mark.parametrize(
    ("tokens", "topk", "words"),
    [(3, 1, "3 is not one of 0, 1, 2, 5, 7"), (8, 1, "8 is not one of"), (5, 2, "2 is not one of 1, 3")],
)
def test_what_was_not_prepared_is_refused_with_what_was(eagle3, tokens, topk, words):
    refused = eagle3.put(eagle3.change(0, rows=rows(tokens, topk)))
    assert refused.status_code == 422
    assert words in refused.json()["message"]


@pytest.mark.parametrize("topk", [1, 3], ids=["chain", "tree"])
def test_greedy_output_is_the_same_for_every_table_value(eagle3, reference, topk):
    for tokens in (1, 2, 5, 7):
        assert eagle3.put(eagle3.change(0, rows=rows(tokens, topk))).status_code == 200
        told = [eagle3.generate(prompt) for prompt in PROMPTS]
        assert [one["output_ids"] for one in told] == reference, tokens
        # The head drafts well: each prompt takes fewer steps than tokens.
        assert max(one["meta_info"]["spec_verify_ct"] for one in told) < 31 / (1.5 if tokens == 1 else 1.8)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_greedy_output_is_the_same_while_the_table_changes(eagle3, reference, concurrency):
    settings = zip(cycle((7, 0, 2, 1, 5, 0)), cycle((1, 1, 3, 3)))
    assert greedy_while_changing(eagle3, concurrency, settings) == reference * 3


def test_after_off_drafts_are_accepted_as_if_there_had_been_none(eagle3):
    """The draft model reads along while nothing is drafted."""
    assert eagle3.put(eagle3.change(5)).status_code == 200
    _, before = emitted_a_step(eagle3, 5)
    eagle3.complete(PROMPTS[0], 300)
    usual, _ = emitted_a_step(eagle3, 5, before)
    assert eagle3.put(eagle3.change(0)).status_code == 200
    _, off_before = emitted_a_step(eagle3, 0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(eagle3.complete, PROMPTS[0], 300)
        wait_for(lambda: emitted_a_step(eagle3, 0, off_before)[1][0] > off_before[0] + 120, 60)
        off, _ = emitted_a_step(eagle3, 0, off_before)
        assert off <= 1
        assert all(sum(cell["drafted_at"]) == 0 for cell in cells_by_number(eagle3)[0])
        _, before = emitted_a_step(eagle3, 5)
        assert eagle3.put(eagle3.change(5)).status_code == 200
        running.result()
    resumed, after = emitted_a_step(eagle3, 5, before)
    assert after[1] - before[1] > 60
    assert resumed > 0.8 * usual > 1.6


def test_steps_are_counted_by_what_came_of_them(eagle3):
    assert eagle3.put(eagle3.change(2)).status_code == 200
    _, before = emitted_a_step(eagle3, 2)
    eagle3.complete(PROMPTS[1], 64, sampling={"custom_params": {"specctl_kind": "code"}})
    a_step, after = emitted_a_step(eagle3, 2, before)
    assert after[1] - before[1] == 63
    assert a_step > 1.5
    for cell in cells_by_number(eagle3)[2]:
        counted = zip(cell["drafted_at"], cell["accepted_at"], strict=True)
        assert all(drafted >= accepted for drafted, accepted in counted)
    assert {one["kind"] for one in eagle3.get("telemetry")["classes"]} >= {"", "code"}


def test_sampled_requests_are_guarded_on_a_cpu(eagle3):
    assert_sampled_guarded(eagle3, 5)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Authorization": ""}, 401, id="none"),
        pytest.param({"Authorization": "Bearer wrong"}, 401, id="unknown"),
        pytest.param({"Authorization": f"Bearer {READ_TOKEN}"}, 403, id="read only"),
    ],
)
def test_who_may_not_change_the_table(eagle3, headers, status):
    assert eagle3.put(eagle3.change(2), headers=headers).status_code == status
