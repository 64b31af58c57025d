"""SPECCTL_PEAGLE on a real SGLang on the CPU: one server, and starts that are refused.

What it drafts is compared with target and head in plain torch (``support.peagle_twin``): the same numbers of
accepted drafts, step by step, are only possible with the same drafts.
"""

import os
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.engine_control import wait_for
from support.peagle_twin import Twin
from support.sglang_control import controlled_sglang_server

from benchmarks.server import KEEP_BYTECODE, SGLANG_PYTHON

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not SGLANG_PYTHON.is_file(),
        reason="SGLang's environment is not there; make setup-sglang makes it, or set SPECCTL_SGLANG_PYTHON",
    ),
]
FULL = 5
TOKENS = 24
PROMPTS = [
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    "Once upon a time, in a small town by the sea, there was a",
    '{"name": "x", "value": 1}\n{"name": "y", "value": 2}\n{"name":',
]


@pytest.fixture(scope="module")
def peagle(shared_models: Path, logs: Path):
    with controlled_sglang_server(
        shared_models / "reference-target", logs / "sglang-peagle.log", "SPECCTL_PEAGLE",
        ["--speculative-draft-model-path", str(shared_models / "reference-peagle"),
         "--speculative-num-draft-tokens", str(FULL + 1)],
    ) as control:  # fmt: skip
        yield control


@pytest.fixture(scope="module")
def reference(peagle):
    """Greedy output of the same server without speculation."""
    assert peagle.put(peagle.change(0)).status_code == 200
    return [peagle.complete(prompt, TOKENS) for prompt in PROMPTS]


def counted(control, number):
    """Steps, drafted and accepted tokens under a table value."""
    cells = [c for c in control.get("telemetry")["cells"] if c["num_speculative_tokens"] == number]
    return [
        sum(cell["request_steps"] for cell in cells),
        sum(sum(cell["drafted_at"]) for cell in cells),
        sum(sum(cell["accepted_at"]) for cell in cells),
    ]


def grown(control, number, before):
    return [a - b for a, b in zip(counted(control, number), before, strict=True)]


def test_capabilities(peagle):
    told = peagle.get("capabilities")
    assert (told["engine"], told["method"], told["controllable"]) == ("sglang", "specctl_peagle", True)
    assert told["num_speculative_tokens_legal"] == list(range(FULL + 1))
    assert "SPECCTL_PEAGLE" in told["algorithms"]


def test_drafts_are_those_of_the_head_in_plain_torch(peagle, reference, shared_models):
    tokenizers = pytest.importorskip("tokenizers")
    target = shared_models / "reference-target"
    tokenizer = tokenizers.Tokenizer.from_file(str(target / "tokenizer.json"))
    twin = Twin(target, shared_models / "reference-peagle")
    assert peagle.put(peagle.change(FULL)).status_code == 200
    for prompt, expected in zip(PROMPTS, reference, strict=True):
        told = peagle.generate(prompt, TOKENS)
        ids, steps = twin.generate(tokenizer.encode(prompt).ids, TOKENS, FULL)
        assert told["output_ids"] == ids == expected
        meta = told["meta_info"]
        assert meta["spec_verify_ct"] == len(steps)
        # Of the last step it counts what the answer had room for.
        histogram = Counter(step.accepted for step in steps[:-1])
        found = dict(enumerate(meta["spec_correct_drafts_histogram"]))
        assert sum((Counter(found) - histogram).values()) == 1


@pytest.mark.parametrize("value", [5, 3, 1, 0])
def test_a_value_is_obeyed_and_changes_no_token(peagle, reference, value):
    assert peagle.put(peagle.change(value)).status_code == 200
    before = counted(peagle, value)
    assert [peagle.complete(prompt, TOKENS) for prompt in PROMPTS] == reference
    steps, drafted, accepted = grown(peagle, value, before)
    assert drafted == value * steps
    assert (0 < accepted < drafted) if value else accepted == 0


@pytest.mark.parametrize("concurrency", [4, 8])
def test_greedy_output_is_the_same_while_the_table_changes(peagle, reference, concurrency):
    tables = 0
    with ThreadPoolExecutor(concurrency) as pool:
        running = [pool.submit(peagle.complete, prompt, TOKENS) for prompt in PROMPTS * 3]
        while not all(one.done() for one in running):
            assert peagle.put(peagle.change((5, 0, 3, 1, 0, 4, 0, 2)[tables % 8])).status_code == 200
            tables += 1
            time.sleep(0.1)
        assert [one.result() for one in running] == reference * 3
    assert tables >= 5


@pytest.mark.parametrize("rest_tokens", [3, 80], ids=["all rows kept", "the first ones lost"])
def test_a_request_drafts_again_after_off(peagle, rest_tokens):
    """As many as before: the head has caught up."""
    assert peagle.put(peagle.change(0)).status_code == 200
    expected = peagle.complete(PROMPTS[1], 400)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(peagle.complete, PROMPTS[1], 400)
        before = counted(peagle, 0)
        wait_for(lambda: grown(peagle, 0, before)[0] >= rest_tokens)
        before = counted(peagle, FULL)
        assert peagle.put(peagle.change(FULL)).status_code == 200
        wait_for(lambda: grown(peagle, FULL, before)[0] >= 10)
        _, drafted, accepted = grown(peagle, FULL, before)
        assert running.result() == expected
    assert accepted > drafted / 2


def test_sampled_requests_are_guarded_on_a_cpu(peagle):
    assert peagle.put(peagle.change(FULL)).status_code == 200
    before = peagle.get("telemetry")["guarded_steps"]
    sampled = {"temperature": 0.8, "top_k": 20}
    outputs = {tuple(peagle.complete(PROMPTS[2], 16, sampling=sampled)) for _ in range(3)}
    assert len(outputs) > 1
    assert peagle.get("telemetry")["guarded_steps"] >= before + 40


STARTS = """
import sys
import specctl_sglang.cpu_serve
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args
load_plugins()
target, peagle, eagle3 = sys.argv[1:]
def refused(algorithm, head, *more):
    flags = ["--model-path", target, "--device", "cpu", "--speculative-algorithm", algorithm, *more]
    try:
        head_flags = ["--speculative-draft-model-path", head] if head else []
        prepare_server_args([*flags, *head_flags]).resolve_once()
    except ValueError as error:
        print(error)
    else:
        print("taken")
refused("SPECCTL_PEAGLE", eagle3, "--speculative-num-draft-tokens", "6")
refused("EAGLE3", peagle)
refused("SPECCTL_PEAGLE", peagle)
refused("SPECCTL_PEAGLE", None, "--speculative-num-draft-tokens", "6")
refused("SPECCTL_PEAGLE", peagle, "--speculative-num-draft-tokens", "6", "--speculative-num-steps", "3")
refused("SPECCTL_PEAGLE", peagle, "--speculative-num-draft-tokens", "6", "--speculative-eagle-topk", "4")
"""


def test_a_head_of_the_wrong_format_ends_the_start(shared_models):
    heads = [str(shared_models / f"reference-{name}") for name in ("target", "peagle", "eagle3")]
    done = subprocess.run(
        [str(SGLANG_PYTHON), "-c", STARTS, *heads],
        capture_output=True, text=True, timeout=300, env={**os.environ, **KEEP_BYTECODE},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.strip()][-6:]
    expected = (
        "found a plain EAGLE-3 head: --speculative-algorithm EAGLE3 is the one to use for it",
        "expected an EAGLE-3 head for EAGLE3, found a P-EAGLE head",
        "--speculative-num-draft-tokens: expected at least 2, one more than are drafted, got None",
        "--speculative-draft-model-path: expected a P-EAGLE head, got nothing",
        "--speculative-num-steps: expected 5, --speculative-num-draft-tokens less 1, got 3",
        "--speculative-eagle-topk: expected 1, got 4",
    )
    for line, part in zip(told, expected, strict=True):
        assert part in line
