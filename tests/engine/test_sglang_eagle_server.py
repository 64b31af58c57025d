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
from support.daemon_beside import assert_daemon_is_harmless, run_daemon, setting_at
from support.engine_control import CONTROL_TOKEN, READ_TOKEN, wait_for
from support.sampled_steps import assert_off_is_not_slower, assert_samples_fill_both_cells, counted, ran
from support.sglang_control import (
    NEEDS_SGLANG,
    PROMPTS,
    assert_grammars_hold_with_drafts,
    assert_sampled_guarded,
    cells_by_number,
    controlled_sglang_server,
    greedy_while_changing,
    rows,
)

pytestmark = NEEDS_SGLANG
START = (3, 3, 8)
"""Passes, branches and positions, as the server is told them."""
OFF = (0, 1, 1)
NAMES = ("num_speculative_tokens", "tree_topk", "verify_width_tokens")
CHAINS = [(0, 1, 1), (1, 1, 2), (2, 1, 3), (5, 1, 6)]
TREES = [(1, 3, 4), (2, 2, 5), (2, 3, 5), (2, 3, 8), (3, 2, 5), (3, 2, 8), (3, 3, 5), START]
ARGUMENTS = [
    *("--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "3"),
    *("--speculative-num-draft-tokens", "8"),
]


@pytest.fixture(scope="module")
def eagle3(shared_models: Path, logs: Path, token_file: Path):
    """Few chains, trees of three branches, a token file."""
    options = {"candidates": [0, 1, 2, 5], "token_file": str(token_file)}
    head = ["--speculative-draft-model-path", str(shared_models / "reference-eagle3")]
    head += ["--grammar-backend", "xgrammar", "--constrained-json-disable-any-whitespace"]
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
    answers = [eagle3.generate(prompt) for prompt in PROMPTS]
    assert {one["meta_info"]["spec_verify_ct"] for one in answers} == {31}
    return [one["output_ids"] for one in answers]


def shape_of(values):
    """Depth, branches and positions of a row, a setting or a cell."""
    depth, topk, width = (values[name] for name in NAMES)
    return depth, topk, width or depth + 1


def decoding_cells(control):
    return [cell for cells in cells_by_number(control).values() for cell in cells]


def verified(control, shape):
    """Request-steps and verified positions of a setting so far."""
    cells = [cell for cell in decoding_cells(control) if shape_of(cell) == shape]
    return tuple(sum(cell[key] for cell in cells) for key in ("request_steps", "verified_tokens"))


def emitted_a_step(control, number, since=(0, 0)):
    cells = cells_by_number(control).get(number, [])
    steps = sum(cell["request_steps"] for cell in cells)
    emitted = sum(cell["emitted_tokens"] for cell in cells)
    return (emitted - since[1]) / max(steps - since[0], 1), (steps, emitted)


def test_before_a_table_comes_drafts_are_as_the_server_was_started(eagle3):
    table = eagle3.get("table")
    assert table["state"] == "start"
    assert shape_of(table["rows"][0]) == START
    assert table["start_rows"] == table["rows"]
    assert len(eagle3.complete(PROMPTS[1], 8)) == 8
    assert {shape_of(cell) for cell in decoding_cells(eagle3)} == {START}


def test_a_server_that_tells_no_load_is_not_recorded(eagle3, tmp_path):
    """Without --enable-metrics, which the message names."""
    command = [str(Path(sys.executable).parent / "specctl"), "record", eagle3.server.url]
    command += ["--token-file", str(tmp_path / "token"), "--output", str(tmp_path / "log")]
    (tmp_path / "token").write_text(READ_TOKEN)
    output = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert output.returncode == 1
    assert "SGLang serves its metrics with --enable-metrics only" in output.stderr
    assert not (tmp_path / "log").exists()


def test_capabilities_name_what_was_prepared(eagle3):
    capabilities = eagle3.get("capabilities")
    assert (capabilities["method"], capabilities["controllable"]) == ("eagle3", True)
    assert capabilities["num_speculative_tokens_legal"] == [0, 1, 2, 3, 5]
    assert [shape_of(one) for one in capabilities["settings"]] == sorted([*CHAINS, *TREES])
    assert capabilities["why_chains_only"] is None
    assert capabilities["contract_version"] == 2
    assert capabilities["method_options"]["speculative_attention_mode"] == "prefill"
    assert capabilities["class_limits_max"] > 0
    assert "prepared, with the memory of their graphs: 0 drafts" in eagle3.server.log.read_text()


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((4, 1, None), "4 is not one of 0, 1, 2, 3, 5"),
        ((8, 1, None), "8 is not one of"),
        ((5, 3, None), "3 is not one of 1 at a depth of 5"),
        ((3, 3, 7), "7 is not one of 5, 8 at a depth of 3 with 3 branches"),
        ((2, 1, 8), "8 is not one of 3 at a depth of 2"),
    ],
)
def test_what_was_not_prepared_is_refused_with_what_was(eagle3, shape, words):
    refused = eagle3.put(eagle3.change(0, rows=rows(*shape)))
    assert refused.status_code == 422
    assert words in refused.json()["message"]


@pytest.mark.parametrize("shape", [*CHAINS[1:], *TREES], ids=str)
def test_greedy_output_is_the_same_for_every_prepared_setting(eagle3, reference, shape):
    assert eagle3.put(eagle3.change(0, rows=rows(*shape))).status_code == 200
    before = verified(eagle3, shape)
    answers = [eagle3.generate(prompt) for prompt in PROMPTS]
    assert [one["output_ids"] for one in answers] == reference
    # The head drafts well: the prompts take fewer steps than tokens.
    assert sum(one["meta_info"]["spec_verify_ct"] for one in answers) < len(answers) * 31 / 1.5
    after = verified(eagle3, shape)
    assert after[1] - before[1] == (after[0] - before[0]) * shape[2] > 0


PENALTIES = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 1.0},
    "frequency": {"frequency_penalty": 0.6},
    "all": {"repetition_penalty": 1.1, "presence_penalty": 0.4, "frequency_penalty": 0.2},
}


@pytest.mark.parametrize("shape", [(5, 1, 6), START], ids=["chain", "tree"])
@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)
def test_penalties_apply_with_drafts_as_without(eagle3, reference, shape, penalty):
    assert eagle3.put(eagle3.change(0)).status_code == 200
    without = [eagle3.complete(prompt, sampling=penalty) for prompt in PROMPTS]
    assert without != reference, "the penalty changes the answers"
    assert eagle3.put(eagle3.change(0, rows=rows(*shape))).status_code == 200
    assert [eagle3.complete(prompt, sampling=penalty) for prompt in PROMPTS] == without


@pytest.mark.parametrize("shape", [(5, 1, 6), START], ids=["chain", "tree"])
def test_requests_beside_one_with_penalties_keep_their_drafts(eagle3, reference, shape):
    """SGLang's overlap scheduler sees a token one step late, and a prompt that comes in between changes that:
    answers with penalties depend on what runs beside them, with drafts and without."""
    assert eagle3.put(eagle3.change(0, rows=rows(*shape))).status_code == 200
    before = eagle3.get("telemetry")["proposer"]["penalty_request_steps"]
    with ThreadPoolExecutor(4) as pool:
        beside = pool.submit(eagle3.complete, PROMPTS[0], 200, sampling=PENALTIES["all"])
        answers = list(pool.map(eagle3.generate, PROMPTS))
        assert len(beside.result()) == 200
    assert [one["output_ids"] for one in answers] == reference
    assert sum(one["meta_info"]["spec_verify_ct"] for one in answers) < len(answers) * 31 / 1.5
    assert eagle3.get("telemetry")["proposer"]["penalty_request_steps"] - before >= 199
    assert "get no drafts: SGLang verifies drafts with the penalties" in eagle3.server.log.read_text()


@pytest.mark.parametrize("shape", [(5, 1, 6), START], ids=["chain", "tree"])
def test_min_new_tokens_and_logit_bias_apply_with_drafts_as_without(eagle3, reference, shape):
    """The bias ends each answer as soon as it may."""
    last = reference[0][20]
    ends = {
        "ignore_eos": False,
        "min_new_tokens": 12,
        "stop_token_ids": [last],
        "logit_bias": {str(last): 99},
    }
    assert eagle3.put(eagle3.change(0)).status_code == 200
    without = [eagle3.complete(prompt, sampling=ends) for prompt in PROMPTS]
    biased = {"logit_bias": {str(token): -99 for token in reference[0][4:8]}}
    others = [eagle3.complete(prompt, sampling=biased) for prompt in PROMPTS]
    assert others != reference
    assert {12, 13} >= set(map(len, without)), "with the last token, or without"
    assert eagle3.put(eagle3.change(0, rows=rows(*shape))).status_code == 200
    assert [eagle3.complete(prompt, sampling=ends) for prompt in PROMPTS] == without
    assert [eagle3.complete(prompt, sampling=biased) for prompt in PROMPTS] == others


def test_ranks_of_accepted_tokens_are_counted(eagle3, reference):
    """0 is the head's first choice. A chain has no other, and tells none."""
    others = 0
    for shape in (START, (2, 2, 5), (5, 1, 6)):
        outputs, found = ran(eagle3, rows(*shape), PROMPTS, max_tokens=32)
        assert outputs == reference
        counts = found[shape]
        if shape[1] == 1:
            assert counts.ranks == []
            continue
        assert sum(counts.ranks) == sum(counts.accepted_at)
        assert len(counts.ranks) == shape[1]
        assert counts.ranks[0] > 2 * sum(counts.ranks[1:])
        others += sum(counts.ranks[1:])
    # Of about 50 drafts with two branches one or none takes the second.
    assert others > 0
    for cell in decoding_cells(eagle3):
        by_depth = [sum(at_depth) for at_depth in cell["accepted_rank_at"]]
        assert by_depth == cell["accepted_at"][: len(by_depth)]


@pytest.mark.parametrize(
    ("base", "sampled"),
    [(START, OFF), (OFF, START), (START, (2, 1, 3)), ((5, 1, 6), (2, 3, 5)), (START, (3, 3, 5))],
    ids=["off", "while off", "a chain", "a tree", "another width"],
)
def test_a_row_samples_another_setting(eagle3, base, sampled):
    prompts = PROMPTS * 2
    reference, _ = ran(eagle3, rows(*OFF), prompts)
    _, alone = ran(eagle3, rows(*sampled), prompts)
    found = assert_samples_fill_both_cells(eagle3, reference, base, sampled, prompts)
    if sampled == OFF:
        assert_off_is_not_slower(eagle3, found, base, sampled, prompts)
    else:
        assert abs(found[sampled].accepted_a_draft - alone[sampled].accepted_a_draft) < 0.25 * sampled[0]
    assert sum(one.after_rest_steps for one in found.values()) == 0, "the head reads along"


def test_a_sample_that_cannot_be_is_refused(eagle3):
    asked = {"num_speculative_tokens": 3, "tree_topk": 3, "verify_width_tokens": 6}
    refused = eagle3.put(eagle3.change(0, rows=rows(*START, {"setting": asked, "every_steps": 10})))
    assert refused.status_code == 422
    assert "sample.setting.verify_width_tokens: 6 is not one of 5, 8" in refused.json()["message"]


def test_rows_by_context_keep_their_trees_and_samples(eagle3, reference):
    sample = {"setting": dict(zip(NAMES, (2, 3, 5), strict=True)), "every_steps": 4}
    table = [
        {**rows(*START, sample)[0], "context_to_tokens": 15},
        {**rows(1, 1, 2)[0], "context_from_tokens": 16},
    ]
    before = eagle3.get("telemetry")["cells"]
    applied = eagle3.put(eagle3.change(0, rows=table)).json()
    assert [shape_of(row) for row in applied["rows"]] == [START, (1, 1, 2)]
    assert applied["rows"][0]["sample"]["setting"]["tree_topk"] == 3
    assert [eagle3.complete(prompt) for prompt in PROMPTS] == reference
    assert set(counted(eagle3, before)) == {START, (1, 1, 2), (2, 3, 5)}


@pytest.mark.parametrize("concurrency", [1, 8])
def test_greedy_output_is_the_same_while_the_table_changes(eagle3, reference, concurrency):
    sample = {"setting": dict(zip(NAMES, (2, 2, 5), strict=True)), "every_steps": 2}
    shapes = (START, OFF, (2, 3, 5), (1, 1, 2), (5, 1, 6), OFF, (1, 3, 4))
    settings = cycle([*shapes, *((*shape, sample) for shape in shapes)])
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
    eagle3.complete(PROMPTS[1], 64, sampling={"custom_params": {"specctl": {"kind": "code"}}})
    a_step, after = emitted_a_step(eagle3, 2, before)
    assert after[1] - before[1] == 63
    assert a_step > 1.5
    for cell in cells_by_number(eagle3)[2]:
        counted = zip(cell["drafted_at"], cell["accepted_at"], strict=True)
        assert all(drafted >= accepted for drafted, accepted in counted)
    assert {one["kind"] for one in eagle3.get("telemetry")["classes"]} >= {"greedy", "code"}


@pytest.mark.parametrize("shape", [(5, 1, 6), START], ids=["chain", "tree"])
def test_a_request_bounds_its_drafts(eagle3, reference, shape):
    """Beside one that does not."""
    assert eagle3.put(eagle3.change(0, rows=rows(*shape))).status_code == 200
    few = {"custom_params": {"specctl": {"max_draft_tokens": 1}}}
    bounded, free = [], []
    with ThreadPoolExecutor(2) as pool:
        for number, prompt in enumerate(PROMPTS):
            bound = pool.submit(eagle3.generate, prompt, sampling=few)
            free.append(eagle3.generate(prompt))
            bounded.append(bound.result())
            assert bounded[-1]["output_ids"] == free[-1]["output_ids"] == reference[number]
    most, unbound = (
        max(len(one["meta_info"]["spec_correct_drafts_histogram"]) for one in answers)
        for answers in (bounded, free)
    )
    assert most == 2 < unbound, "by steps: none and one accepted, and more in the others"


def test_grammars_hold_with_drafts(eagle3):
    assert_grammars_hold_with_drafts(eagle3, [(5, 1, 6), (2, 1, 3), START])


def test_sampled_requests_are_guarded_on_a_cpu(eagle3):
    assert_sampled_guarded(eagle3, 5)


def test_the_daemon_keeps_rows_by_context_with_their_trees_and_samples(eagle3, reference, tmp_path):
    """It decides for the short contexts alone: depth, branches and width."""
    sample = {"setting": dict(zip(NAMES, (1, 3, 4), strict=True)), "every_steps": 4}
    table = [
        {**rows(*OFF)[0], "context_to_tokens": 31},
        {**rows(2, 3, 5, sample)[0], "context_from_tokens": 32},
    ]
    answer = eagle3.put(eagle3.change(0, rows=table))
    assert answer.status_code == 200, answer.text
    long_context = setting_at(answer.json(), 1, 32)
    assert (long_context["tree_topk"], long_context["sample"]["setting"]["tree_topk"]) == (3, 3)
    found = run_daemon(eagle3, tmp_path, PROMPTS, seconds=20, until=trees_were_tried, token=CONTROL_TOKEN)
    assert_daemon_is_harmless(found, reference)
    assert found.changes, "its head drafts well, and it began at off"
    for seen in found.tables[:-1]:
        assert all(setting_at(seen, batch, 32) == long_context for batch in range(1, 9))
    assert [shape_of(row) for row in found.tables[-1]["rows"]] == [START]


def trees_were_tried(found):
    """Chosen or sampled."""
    return any(setting["tree_topk"] > 1 for seen in found.tables for setting in tried_settings(seen))


def tried_settings(table):
    """Of rows for short contexts: their own, and their samples'."""
    short = [row for row in table["rows"] if not row["context_from_tokens"]]
    return [*short, *(row["sample"]["setting"] for row in short if row["sample"])]


def test_a_policy_of_chains_gets_chains_alone(eagle3, reference, tmp_path):
    assert eagle3.put(eagle3.change(0)).status_code == 200
    knobs = {"num_speculative_tokens": {"min": 0, "max": 5}, "tree_topk": {"min": 1, "max": 1}}
    found = run_daemon(
        eagle3, tmp_path, PROMPTS, until=lambda found: found.changes, token=CONTROL_TOKEN, knobs=knobs
    )
    assert_daemon_is_harmless(found, reference)
    assert found.changes
    tried = {shape_of(setting) for seen in found.tables[1:-1] for setting in tried_settings(seen)}
    assert {topk for _, topk, _ in tried} == {1}


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
