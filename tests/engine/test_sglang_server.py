"""A real SGLang on the CPU with SPECCTL_SUFFIX, under SGLang's overlap scheduler, as a server on a GPU runs.

test_sglang_eagle_server.py starts the other one. Stock NGRAM shares this one's worker, apart from where its
drafts come from, which is tested in a process of SGLang's environment without a server.
"""

import json
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pytest
from support.daemon_beside import assert_daemon_is_harmless, run_daemon
from support.engine_control import assert_refused, wait_for
from support.engine_metrics import assert_metrics_hold_the_plugins
from support.recorded_profile import recorded_and_simulated, specctl
from support.sampled_steps import assert_samples_fill_both_cells, ran
from support.scored_outputs import assert_differences_are_scored
from support.sglang_control import (
    LISTING,
    NEEDS_SGLANG,
    PROMPTS,
    assert_grammars_hold_with_drafts,
    assert_sampled_guarded,
    cells_by_number,
    controlled_sglang_server,
    greedy_while_changing,
    rows,
)

from testing.autotune import autotune
from testing.servers import FORKS_ENV, KEEP_BYTECODE, SGLANG_PYTHON
from tools.setup_sglang import SGLANG

pytestmark = NEEDS_SGLANG


@pytest.fixture(scope="module")
def suffix(shared_models: Path, logs: Path):
    """Up to 8 drafted tokens, under the overlap scheduler, with metrics; started as users start it."""
    with controlled_sglang_server(
        shared_models / "reference-target", logs / "sglang-suffix.log", "SPECCTL_SUFFIX",
        [
            *("--speculative-num-draft-tokens", "9", "--speculative-eagle-topk", "4"),
            *("--grammar-backend", "xgrammar", "--constrained-json-disable-any-whitespace"),
            "--enable-metrics",
        ],
        {"SPECCTL_SGLANG_CPU_OVERLAP": "1", FORKS_ENV: ""},
    ) as control:  # fmt: skip
        yield control


@pytest.fixture(scope="module")
def reference(suffix):
    """Greedy output of the same server without speculation."""
    assert suffix.put(suffix.change(0)).status_code == 200
    return [suffix.complete(prompt) for prompt in PROMPTS]


def test_capabilities(suffix):
    found = suffix.get("capabilities")
    assert (found["engine"], found["engine_version"], found["method"]) == ("sglang", SGLANG, "specctl_suffix")
    assert found["controllable"]
    assert found["num_speculative_tokens_legal"] == list(range(9))
    assert (found["decode_batch_max"], found["dtype"], found["parallelism"]) == (8, "float32", "tp1")
    trees = {(one["num_speculative_tokens"], one["tree_topk"]) for one in found["settings"]}
    assert {(8, 4), (8, 2), (4, 4), (1, 2)} <= trees
    assert found["why_chains_only"] is None
    assert "stand-ins" in suffix.server.log.read_text()


@pytest.mark.parametrize("topk", [1, 2, 4], ids=["chain", "two branches", "four branches"])
def test_greedy_output_is_the_same_for_every_setting(suffix, reference, topk):
    settings = [one for one in suffix.get("capabilities")["settings"] if one["tree_topk"] == topk]
    assert len(settings) > 8
    for setting in settings:
        row = {"decode_batch_from": 1, **setting}
        assert suffix.put(suffix.change(0, rows=[row])).status_code == 200
        answers = [suffix.generate(prompt) for prompt in PROMPTS]
        assert [one["output_ids"] for one in answers] == reference, setting
        steps = [one["meta_info"]["spec_verify_ct"] for one in answers]
        assert min(steps) < 32 if setting["num_speculative_tokens"] else min(steps) == 31


@pytest.mark.parametrize("concurrency", [1, 4, 8])
def test_greedy_output_is_the_same_while_the_table_changes(suffix, reference, concurrency):
    settings = cycle(((8, 1), (0, 1), (3, 2, 4), (1, 1), (5, 4), (0, 1), (8, 4), (2, 1), (4, 2, 9)))
    assert greedy_while_changing(suffix, concurrency, settings, rounds=6) == reference * 6


@pytest.mark.parametrize(
    ("base", "sampled"),
    [((8, 1, 9), (0, 1, 1)), ((0, 1, 1), (8, 1, 9)), ((8, 1, 9), (4, 4, 9)), ((8, 4, 9), (2, 2, 3))],
    ids=["off", "while off", "a tree", "a smaller tree"],
)
def test_a_row_samples_another_setting(suffix, base, sampled):
    """Of drafts from finished answers: the first run finds none of them."""
    prompts = [PROMPTS[0], PROMPTS[3]] * 4
    reference, _ = ran(suffix, rows(0), prompts)
    found = assert_samples_fill_both_cells(suffix, reference, base, sampled, prompts)
    for shape, one in found.items():
        assert sum(one.ranks) == (sum(one.accepted_at) if shape[1] > 1 else 0)
    assert all(one.verified_tokens >= one.request_steps for one in found.values())


def test_the_engines_own_metrics_hold_the_plugins(suffix):
    assert suffix.put(suffix.change(8)).status_code == 200
    suffix.complete(LISTING)
    wait_for(lambda: not suffix.get("telemetry")["decoding"])
    assert_metrics_hold_the_plugins(suffix, 8, "sglang:num_running_reqs")


def test_outputs_that_part_are_scored(suffix, shared_models):
    assert_differences_are_scored(suffix.server.url, shared_models / "reference-target")


def test_tokens_are_verified_by_their_chances(suffix):
    """Prompts that nobody has sent, and answers that are not learnt: long drafts are not worth all places."""
    prompts = [
        "The first chapter of the book tells how the river",
        "Dear editor, with great",
        "A list of seven stones: one,",
        "def sort(numbers):\n    for number in numbers:\n       ",
    ]
    alone = {"custom_params": {"specctl": {"share": False, "kind": "fresh"}}}
    assert suffix.put(suffix.change(0)).status_code == 200
    reference = [suffix.complete(prompt, sampling=alone) for prompt in prompts]

    def verified(least):
        asked = [{**rows(8)[0], "min_token_prob": least}]
        assert suffix.put(suffix.change(8, rows=asked)).status_code == 200
        assert suffix.get("table")["rows"][0]["min_token_prob"] == least
        before = sum(cell["verified_tokens"] for cell in suffix.get("telemetry")["cells"])
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda prompt: suffix.complete(prompt, sampling=alone), prompts * 4))
        assert found == reference * 4
        return sum(cell["verified_tokens"] for cell in suffix.get("telemetry")["cells"]) - before

    assert suffix.get("capabilities")["min_token_prob"] == 0.0
    everything, some, nothing = (verified(least) for least in (None, 0.3, 1.0))
    assert everything > some > nothing


def test_steps_are_counted_by_what_came_of_them(suffix):
    assert suffix.put(suffix.change(8)).status_code == 200
    suffix.complete(PROMPTS[1])
    before = suffix.get("telemetry")["cells"]
    suffix.complete(LISTING * 3 + "item_0", 64, sampling={"custom_params": {"specctl": {"kind": "code"}}})
    telemetry = suffix.get("telemetry")

    def total(cells, key):
        return sum(sum(cell[key]) if isinstance(cell[key], list) else cell[key] for cell in cells)

    grew = {
        key: total(telemetry["cells"], key) - total(before, key)
        for key in ("emitted_tokens", "request_steps", "accepted_at", "drafted_at")
    }
    assert grew["emitted_tokens"] == 63
    assert grew["request_steps"] < 40
    assert grew["drafted_at"] >= grew["accepted_at"] >= grew["emitted_tokens"] - grew["request_steps"]
    assert telemetry["proposer"]["corpus_tokens"] > 0
    assert {one["kind"] for one in telemetry["classes"]} >= {"greedy", "code"}


def test_off_takes_one_step_a_token_and_drafting_resumes_with_the_whole_history(suffix):
    assert suffix.put(suffix.change(0)).status_code == 200
    shadow = suffix.get("telemetry")["shadow"]["drafts"]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(suffix.complete, PROMPTS[0], 400)
        wait_for(lambda: suffix.get("telemetry")["decoding"] == 1)
        wait_for(lambda: suffix.get("telemetry")["shadow"]["drafts"] > shadow)
        off = cells_by_number(suffix)[0]
        assert all(cell["emitted_tokens"] <= cell["request_steps"] for cell in off)
        assert all(sum(cell["drafted_at"]) == 0 for cell in off)
        before = sum(sum(cell["accepted_at"]) for cell in cells_by_number(suffix).get(8, []))
        assert suffix.put(suffix.change(8)).status_code == 200
        wait_for(
            lambda: sum(sum(cell["accepted_at"]) for cell in cells_by_number(suffix).get(8, [])) > before
        )
        running.result()


def test_a_put_takes_effect_within_one_step(suffix):
    assert suffix.put(suffix.change(0)).status_code == 200
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(suffix.complete, PROMPTS[0], 600)
        wait_for(lambda: suffix.get("telemetry")["decoding"] == 1)
        for tokens in (2, 0, 1):
            assert suffix.put(suffix.change(tokens)).status_code == 200
            others = [number for number in cells_by_number(suffix) if number != tokens]
            before = {n: sum(cell["steps"] for cell in cells_by_number(suffix)[n]) for n in others}
            wait_for(lambda tokens=tokens: suffix.get("telemetry")["num_speculative_tokens"] == tokens)
            after = {n: sum(cell["steps"] for cell in cells_by_number(suffix)[n]) for n in others}
            # A step that was launched before the table came is still counted after it.
            assert sum(after.values()) - sum(before.values()) <= 2
        running.result()


def test_penalties_apply_with_drafts_as_without(suffix):
    """SGLang's own verification is NGRAM's here: its drafts are the host's."""
    asked = {"presence_penalty": 1.0, "frequency_penalty": 0.6}
    assert suffix.put(suffix.change(0)).status_code == 200
    without = [suffix.complete(prompt, sampling=asked) for prompt in PROMPTS]
    for topk in (1, 4):
        assert suffix.put(suffix.change(0, rows=rows(8, topk, 9))).status_code == 200
        answers = [suffix.generate(prompt, sampling=asked) for prompt in PROMPTS]
        assert [one["output_ids"] for one in answers] == without
        assert {one["meta_info"]["spec_verify_ct"] for one in answers} == {31}, "no drafts"


def test_a_request_bounds_its_drafts(suffix, reference):
    assert suffix.put(suffix.change(8)).status_code == 200
    never, few = ({"custom_params": {"specctl": {"max_draft_tokens": most}}} for most in (0, 1))
    answer = suffix.generate(PROMPTS[0], sampling=never)
    assert (answer["output_ids"], answer["meta_info"]["spec_verify_ct"]) == (reference[0], 31)
    answer = suffix.generate(PROMPTS[0], sampling=few)
    assert answer["output_ids"] == reference[0]
    assert 16 <= answer["meta_info"]["spec_verify_ct"] < 31, "one draft a step, of which most are accepted"


def test_a_rule_for_a_class_bounds_its_drafts(suffix, reference):
    rules = [{"kind": "slow", "max_num_speculative_tokens": 0}]
    assert suffix.get("capabilities")["class_limits_max"] > 0
    assert suffix.put(suffix.change(8, class_limits=rules)).status_code == 200
    slow = {"custom_params": {"specctl": {"kind": "slow"}}}
    with ThreadPoolExecutor(2) as pool:
        bound = pool.submit(suffix.generate, PROMPTS[0], sampling=slow)
        free = suffix.generate(PROMPTS[0])
    for answer in (bound.result(), free):
        assert answer["output_ids"] == reference[0]
    assert bound.result()["meta_info"]["spec_verify_ct"] == 31 > free["meta_info"]["spec_verify_ct"]


def test_an_output_that_is_not_shared_is_not_learnt_from(suffix):
    assert suffix.put(suffix.change(8)).status_code == 200

    def learnt():
        """Indexed, or waiting to be."""
        proposer = suffix.get("telemetry")["proposer"]
        return proposer["corpus_tokens"] + proposer["corpus_waiting_tokens"]

    before = learnt()
    alone = {"custom_params": {"specctl": {"share": False}}}
    suffix.complete("Nobody learns from this: ", 48, sampling=alone)
    suffix.complete("Everybody learns from this: ", 24)
    wait_for(lambda: learnt() > before)
    # Drafts that were accepted behind the end of the answer are learnt with it.
    assert learnt() - before <= 24 + 8, "the second answer alone"


@pytest.mark.parametrize(
    "body",
    [
        (
            "/generate",
            {"text": "a", "sampling_params": {"custom_params": {"specctl": {"max_draft_tokens": -1}}}},
        ),
        ("/v1/completions", {"prompt": "a", "custom_params": {"specctl": {"drafts": 1}}}),
        ("/v1/completions", {"prompt": "a", "custom_params": {"specctl": {"kind": "No Kind"}}}),
    ],
    ids=["generate", "unknown key", "no kind"],
)
def test_a_wrong_field_is_an_error_of_that_request_alone(suffix, reference, body):
    route, asked = body
    answer = suffix.client.post(route, json={"model": "model", "max_tokens": 4, **asked})
    assert answer.status_code == 400
    assert "specctl." in answer.text
    assert suffix.complete(PROMPTS[0]) == reference[0]


def test_grammars_hold_with_drafts(suffix):
    assert_grammars_hold_with_drafts(suffix, [(8, 1), (3, 1), (8, 4, 9)])


def test_sampled_requests_are_guarded_on_a_cpu(suffix):
    assert_sampled_guarded(suffix, 8)


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        pytest.param(b"{", 400, "malformed", id="malformed JSON"),
        pytest.param({"surplus": 1}, 400, "malformed", id="unknown key"),
        pytest.param({"base_version": 10**6}, 409, "version_conflict", id="version conflict"),
        pytest.param({"fallback_num_speculative_tokens": 99}, 422, "table_refused", id="illegal fallback"),
        pytest.param({"rows": rows(9)}, 422, "table_refused", id="over"),
        pytest.param({"rows": rows(4, 20)}, 422, "table_refused", id="too many branches"),
        pytest.param(b"x" * 70_000, 413, "too_large", id="too large"),
    ],
)
def test_bad_puts_are_refused_and_the_last_good_table_stays(suffix, change, status, error):
    assert_refused(suffix, change, status, error)


def test_a_lease_that_ends_falls_back(suffix):
    applied = suffix.put(suffix.change(8, lease_s=0.5, fallback_num_speculative_tokens=1)).json()
    assert (applied["state"], applied["rows"][0]["num_speculative_tokens"]) == ("live", 8)
    time.sleep(0.6)
    table = suffix.get("table")
    assert (table["state"], table["rows"][0]["num_speculative_tokens"]) == ("fallback", 1)


def test_prompts_are_counted_in_steps_of_their_own(suffix):
    def alone():
        cells = [cell for cell in suffix.get("telemetry")["cells"] if cell["decode_batch_to"] == 0]
        return [(cell["steps"], cell["prefill_tokens"], cell["request_steps"]) for cell in cells]

    [before] = alone() or [(0, 0, 0)]
    answer = suffix.generate("A prompt that nobody has sent before: " + "seven rivers " * 20, 4)
    [after] = alone()
    assert after[0] > before[0]
    assert after[1] - before[1] == answer["meta_info"]["prompt_tokens"] - answer["meta_info"]["cached_tokens"]
    assert after[2] == 0


def test_a_log_of_the_server_and_its_profile_can_be_simulated(suffix, tmp_path):
    profile = recorded_and_simulated(suffix, tmp_path, [(60, 120), (110, 220)])
    fingerprint = profile["fingerprint"]
    assert (fingerprint["engine"], fingerprint["gpu"]) == (f"sglang {SGLANG}", "cpu")
    assert profile["forward"][-1]["tokens"] > 8 * 9, "prompts were counted"


def test_the_daemon_retunes_the_running_server(suffix, tmp_path):
    assert suffix.put(suffix.change(0)).status_code == 200
    done = threading.Event()
    with autotune(suffix.server.url, tmp_path), ThreadPoolExecutor(1) as pool:

        def load():
            while not done.is_set():
                suffix.complete(LISTING * 3 + "item_0", 32)

        pool.submit(load)
        try:
            wait_for(lambda: suffix.get("table")["rows"][0]["num_speculative_tokens"] > 0, 90)
        finally:
            done.set()
    assert f"specctl_suffix on sglang {SGLANG}" in (tmp_path / "autotune.log").read_text()
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert any(record.get("from") != record.get("to") for record in records)


def test_whatever_the_daemon_decides_the_output_is_the_same(suffix, reference, tmp_path):
    assert suffix.put(suffix.change(0)).status_code == 200
    assert_daemon_is_harmless(run_daemon(suffix, tmp_path, PROMPTS), reference)


def test_status_is_readable(suffix):
    output = specctl("status", suffix.server.url)
    assert output.returncode == 0, output.stderr
    assert "specctl_suffix" in output.stdout


MISFIT = """
import asyncio, httpx
import specctl_sglang.cpu_serve
from specctl_sglang import register
from specctl.engine.engine_check import Problem
register.problems_of = lambda _: [Problem("sglang.x.y not found")]
register.register()
from sglang.srt.entrypoints.http_server import app
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
try:
    SpeculativeAlgorithm.from_string("SPECCTL_SUFFIX")
except ValueError as error:
    print(error)
async def ask():
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/specctl/v1/capabilities")
        print(answer.status_code, answer.json()["message"])
asyncio.run(ask())
"""


def test_an_sglang_that_does_not_fit_runs_as_stock_and_the_routes_say_why():
    environment = {**os.environ, **KEEP_BYTECODE}
    done = subprocess.run(
        [str(SGLANG_PYTHON), "-c", MISFIT], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "Unknown speculative algorithm name: SPECCTL_SUFFIX" in done.stdout
    assert "503 specctl registers nothing: it does not fit this SGLang: sglang.x.y not found" in done.stdout


NGRAM = """
import specctl_sglang.cpu_serve
from types import SimpleNamespace
import numpy as np
from sglang.srt.speculative.ngram_worker import NGRAMWorker
from specctl_sglang.compat.ngram_worker import SteeredNgramWorker
from specctl_sglang.control.steering import OpenStep
from specctl_sglang.proposers.layout import Emitted
seen = []
def learn(self, batch):
    seen.append(self.draft_token_num)
    self.ngram_corpus.batch_put(["first", "second"])
NGRAMWorker._update_ngram_corpus = learn
def request(**field):
    return SimpleNamespace(sampling_params=SimpleNamespace(custom_params={"specctl": field}))
learnt = []
worker = SteeredNgramWorker.__new__(SteeredNgramWorker)
worker._full_width, worker._branches, worker.draft_token_num = 6, 2, 3
worker._states = SimpleNamespace(keys=(0, 1, 2, 3, 5))
tokens, mask = np.arange(12, dtype=np.int64), np.tile(np.tril(np.ones((6, 6), bool)), (2, 1, 1))
def drafted(batch):
    print("after", batch.spec_info.accept_tokens.tolist(), batch.spec_info.accept_lens.tolist())
    return tokens, mask.reshape(-1)
worker._prepare_draft_tokens = drafted
worker.ngram_corpus = SimpleNamespace(batch_put=learnt.extend)
batch = SimpleNamespace(reqs=[request(), request()], spec_info=SimpleNamespace())
emitted = Emitted(np.array([9, 9]), np.array([[7, 8], [6, 0]], np.int32), np.array([2, 1]))
def asked(*shape):
    step = OpenStep()
    step.take(shape)
    found = worker._find(batch, step, emitted)
    print("drafts", found.tokens.tolist(), found.parents.tolist(), found.drafted.tolist(), found.width)
asked(2, 2, 3)
mask[1, 3, 2] = mask[1, 4, 2] = mask[1, 4, 3] = mask[1, 5, 2] = False
asked(5, 1, 6)
asked(2, 2, 6)
worker.draft_token_num = 3
worker._update_ngram_corpus(batch)
print("learns by rows of", seen, worker.draft_token_num)
worker._rest(batch, OpenStep()); worker._rest(batch, OpenStep())
print("rests", seen, worker.prev_accept_lens)
learnt.clear()
batch.reqs[0] = request(share=False)
worker._update_ngram_corpus(batch)
print("learns from", learnt)
"""


def test_stock_ngrams_drafts_are_cut_to_what_the_table_says():
    done = subprocess.run(
        [str(SGLANG_PYTHON), "-c", NGRAM],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **KEEP_BYTECODE},
    )
    assert done.returncode == 0, done.stderr
    assert "after [7, 8, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0] [2, 1]" in done.stdout
    assert "drafts [[1, 2], [7, 8]] [[-1, 0], [-1, 0]] [2, 2] 3" in done.stdout
    # The second request's tree: 8 and 9 after 7, and nothing after 8.
    assert "drafts [[1, 2, 3, 4, 5], [7, 8, 0, 0, 0]]" in done.stdout
    assert "drafts [[1, 2, 0, 0, 0], [7, 8, 9, 0, 0]]" in done.stdout
    assert "[-1, 0, 0, -1, -1]] [2, 3] 4" in done.stdout
    assert "learns by rows of [6] 3" in done.stdout
    assert "rests [6, 3] [0, 0]" in done.stdout
    assert "learns from ['second']" in done.stdout


def test_a_wrong_option_ends_the_start_and_is_named():
    code = "import specctl_sglang.cpu_serve as serve; serve.main()"
    environment = {**os.environ, **KEEP_BYTECODE, "SPECCTL_SGLANG_OPTIONS": '{"candidate": [1]}'}
    done = subprocess.run(
        [str(SGLANG_PYTHON), "-c", code], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode != 0
    assert "did you mean 'candidates'" in done.stderr
