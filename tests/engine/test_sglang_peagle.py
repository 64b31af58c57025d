"""SPECCTL_PEAGLE in a scheduler of SGLang's on the CPU, in one process (``support.sglang_peagle_run``): a
server would be the third that these tests start, and has nothing of its own for this algorithm.

Every draft that it verifies is compared with target and head in plain torch (``support.peagle_reference``).
"""

import json
import os
import subprocess

import pytest
import torch
from support.peagle_reference import PlainPEagle
from support.random_models import write_speculators_peagle, write_with_vocabulary
from support.sglang_control import NEEDS_SGLANG, ran_by_sglang

from testing.servers import KEEP_BYTECODE, SGLANG_PYTHON

pytestmark = NEEDS_SGLANG
FULL = 5
TOKENS = 36
PROMPTS = [
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    "Once upon a time, in a small town by the sea, there was a",
    '{"name": "x", "value": 1}\n{"name": "y", "value": 2}\n{"name":',
]
SCENARIOS = {
    "off": {"values": [0]},
    "full": {"values": [FULL]},
    "three": {"values": [3]},
    "one": {"values": [1]},
    "every step another": {"values": [5, 0, 3, 1, 0, 4, 0, 2]},
    "every third step another": {"values": [5, 0, 2, 0], "every": 3},
    "one after the other": {"values": [FULL], "apart": 3},
    "without room": {"values": [FULL], "apart": 3, "has_room": False},
    "off, without room": {"values": [0, FULL], "every": 6, "has_room": False},
    "samples of off": {"values": [[FULL, 0, 3]], "every": 1000},
    "samples while off": {"values": [[0, 4, 2]], "every": 1000},
    "samples of fewer": {"values": [[FULL, 2, 2]], "every": 1000},
    "sampled": {"values": [FULL], "sampling": {"temperature": 0.8, "top_k": 20}},
}
LONG = {"tokens": 600, "values": [FULL, 0, FULL, FULL, FULL], "every": 50}
"""A rest of 50 steps, of which 40 rows are kept."""


@pytest.fixture(scope="module")
def prompts(shared_models):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(shared_models / "reference-target" / "tokenizer.json"))
    return [tokenizer.encode(prompt).ids for prompt in PROMPTS]


def ran(target, head, out, prompts, scenarios, more=()):
    """What came of the scenarios, by their names, and what the scheduler tells."""
    defaults = {
        "prompts": prompts,
        "tokens": TOKENS,
        "every": 1,
        "apart": 0,
        "sampling": {},
        "has_room": True,
    }
    asked = [{**defaults, **scenario} for scenario in scenarios.values()]
    work = {"target": str(target), "head": str(head), "drafts": FULL, "scenarios": asked, "more": list(more)}
    answer = ran_by_sglang("sglang_peagle_run.py", work, out, is_copy=True)
    return answer | {"scenarios": dict(zip(scenarios, answer["scenarios"], strict=True))}


@pytest.fixture(scope="module")
def results(prompts, shared_models, logs):
    target, head = shared_models / "reference-target", shared_models / "reference-peagle"
    scenarios = {**SCENARIOS, "long": {**LONG, "prompts": prompts[1:2]}}
    return ran(target, head, logs / "sglang-peagle.json", prompts, scenarios)


@pytest.fixture(scope="module")
def reference(shared_models):
    return PlainPEagle(shared_models / "reference-target", shared_models / "reference-peagle")


def test_capabilities(results):
    found = results["capabilities"]
    assert (found["engine"], found["method"], found["controllable"]) == ("sglang", "specctl_peagle", True)
    assert found["num_speculative_tokens_legal"] == list(range(FULL + 1))
    assert "SPECCTL_PEAGLE" in found["algorithms"]


def test_a_request_has_places_for_a_pass_behind_what_is_being_verified(results):
    """The overlap scheduler reserves them before it knows what the step before has accepted."""
    assert results["reserved_places"] >= (FULL + 1) + 2 * FULL


def test_output_without_drafts_is_the_targets(results, reference, prompts):
    expected = [reference.generate(prompt, TOKENS, 0)[0] for prompt in prompts]
    assert results["scenarios"]["off"]["outputs"] == expected


@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if "sampling" not in one])
def test_greedy_output_is_the_same_for_every_table(results, name):
    scenarios = results["scenarios"]
    assert scenarios[name]["outputs"] == scenarios["off"]["outputs"]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("off", "sampled")])
def test_every_draft_is_the_heads(results, reference, prompts, name):
    """After a prompt, after other drafts and after a rest, and no more of them than the table says."""
    values = SCENARIOS[name]["values"]
    numbers = {number for one in values for number in (one[:2] if isinstance(one, list) else [one])}
    assert compared(results["scenarios"][name], reference, prompts, numbers) >= (20 if 4 in numbers else 40)


def counted(results, name):
    """Steps by [drafts, whether after a rest, whether sampled]."""
    return {tuple(key): count for *key, count in results["scenarios"][name]["counted"] if count}


def test_steps_after_a_rest_have_a_cell_of_their_own(results):
    """The head reads what it missed, after a sample of 0 and in the first step of a sample of drafts."""
    found = counted(results, "samples of off")
    assert found[0, False, True] > 3
    assert abs(found[FULL, True, False] - found[0, False, True]) <= 1
    assert found[FULL, False, False] > found[FULL, True, False] / 2
    found = counted(results, "samples while off")
    assert found.keys() == {(0, False, False), (4, True, True), (4, False, True)}
    assert found[4, True, True] > 3
    assert abs(found[4, True, True] - found[4, False, True]) <= 1
    assert counted(results, "samples of fewer").keys() == {(FULL, False, False), (2, False, True)}


def compared(found, reference, prompts, numbers):
    """How many drafts there were, all of which are the reference's."""
    total = 0
    for prompt, output, steps in zip(prompts, found["outputs"], found["steps"], strict=True):
        expected = reference.drafts_along(prompt, output, [accepted + 1 for _, accepted, _ in steps], FULL)
        for (drafts, _, count), wanted in zip(steps, expected, strict=False):
            assert len(drafts) in numbers
            assert drafts == [*wanted[:count], *[0] * (len(drafts) - count)]
            total += count
    return total


def test_a_request_has_drafts_from_its_prompt(results):
    for steps in results["scenarios"]["one after the other"]["steps"]:
        assert [count for _, _, count in steps] == [FULL] * len(steps)


def test_no_place_of_the_cache_is_lost(results):
    assert results["lost_places"] == 0


def test_without_room_a_few_get_their_first_drafts_from_the_step_that_they_join(results):
    """The first one is alone, the second half of its batch; the third and the fourth are a third and less."""
    steps = results["scenarios"]["without room"]["steps"]
    numbers = [[count for _, _, count in one] for one in steps]
    assert [one[0] for one in numbers] == [FULL, FULL, 0, 0]
    assert all(number == FULL for one in numbers for number in one[1:])
    assert [accepted for _, accepted, _ in (steps[2][0], steps[3][0])] == [0, 0]


def test_a_head_in_the_format_of_speculators(results, prompts, shared_models, logs, tmp_path):
    """With a vocabulary of its own, biases, other layers of the target and another residual."""
    target = shared_models / "reference-target"
    head = write_speculators_peagle(shared_models / "reference-peagle", tmp_path / "head")
    found = ran(target, head, tmp_path / "out.json", prompts, {"full": {"values": [FULL]}})["scenarios"][
        "full"
    ]
    assert found["outputs"] == results["scenarios"]["off"]["outputs"]
    assert compared(found, PlainPEagle(target, head), prompts, {FULL}) >= 40


def test_only_tokens_of_a_map_are_drafted(results, prompts, shared_models, tmp_path):
    """As by a head whose own vocabulary they are; here with prompts that come in chunks."""
    target, head = shared_models / "reference-target", shared_models / "reference-peagle"
    ids = list(range(0, json.loads((target / "config.json").read_text())["vocab_size"], 2))
    torch.save(ids, tmp_path / "map.pt")
    flags = ["--speculative-token-map", str(tmp_path / "map.pt"), "--chunked-prefill-size", "8"]
    found = ran(target, head, tmp_path / "out.json", prompts, {"full": {"values": [FULL]}}, flags)
    full = found["scenarios"]["full"]
    assert full["outputs"] == results["scenarios"]["off"]["outputs"]
    with_its_own = write_with_vocabulary(head, tmp_path / "head", ids)
    assert compared(full, PlainPEagle(target, with_its_own), prompts, {FULL}) >= 40
    assert found["lost_places"] == 0


def test_as_many_steps_as_the_reference_takes(results, reference, prompts):
    for prompt, steps in zip(prompts, results["scenarios"]["full"]["steps"], strict=True):
        _, expected = reference.generate(prompt, TOKENS, FULL)
        assert [accepted for _, accepted, _ in steps] == [step.accepted for step in expected]


def test_drafts_are_accepted_after_a_rest_longer_than_what_is_kept(results):
    """As well as before it, of whatever head."""
    steps = results["scenarios"]["long"]["steps"][0]
    drafting = [bool(drafts) for drafts, *_ in steps]
    rest = drafting.index(False)
    back = drafting.index(True, rest)
    assert back - rest >= 49
    before, after = (
        [accepted for _, accepted, _ in some] for some in (steps[:rest], steps[back : back + rest])
    )
    assert sum(after) / len(after) > 0.7 * sum(before) / len(before) > 0.2


def test_nothing_is_drafted_for_sampled_requests_on_a_cpu(results):
    found = results["scenarios"]["sampled"]
    assert not any(drafts for steps in found["steps"] for drafts, *_ in steps)
    assert found["outputs"] != results["scenarios"]["off"]["outputs"]
    assert results["guarded_steps"] >= TOKENS - 1


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
for head, algorithm in ((peagle, "SPECCTL_PEAGLE"), (None, "SPECCTL_SUFFIX")):
    for mode in ("--pp-size=2", "--disaggregation-mode=prefill", "--disaggregation-mode=decode"):
        refused(algorithm, head, "--speculative-num-draft-tokens", "6", mode)
"""


def test_a_start_that_cannot_be_is_refused(shared_models):
    heads = [str(shared_models / f"reference-{name}") for name in ("target", "peagle", "eagle3")]
    done = subprocess.run(
        [str(SGLANG_PYTHON), "-c", STARTS, *heads],
        capture_output=True, text=True, timeout=300, env={**os.environ, **KEEP_BYTECODE},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.strip()][-12:]
    expected = (
        "found a plain EAGLE-3 head: --speculative-algorithm EAGLE3 is the one to use for it",
        "expected an EAGLE-3 head for EAGLE3, found a P-EAGLE head",
        "--speculative-num-draft-tokens: expected at least 2, one more than are drafted, got None",
        "--speculative-draft-model-path: expected a P-EAGLE head, got nothing",
        "--speculative-num-steps: expected 5, --speculative-num-draft-tokens less 1, got 3",
        "--speculative-eagle-topk: expected 1, got 4",
        *(
            f"{algorithm} does not go with {mode}"
            for algorithm in ("SPECCTL_PEAGLE", "SPECCTL_SUFFIX")
            for mode in ("--pp-size over 1", "--disaggregation-mode", "--disaggregation-mode")
        ),
    )
    for line, part in zip(printed, expected, strict=True):
        assert part in line
