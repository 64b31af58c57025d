"""Two ranks of a mixture of experts with data-parallel attention on a real SGLang, which run every step
together: one shape of drafts for both, chains and trees."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import pytest
from support.expert_models import write_experts_with_mtp
from support.ranks import grown, put_table
from support.sglang_control import (
    NEEDS_SGLANG,
    PROMPTS,
    SglangControl,
    controlled_sglang_server,
    rows,
    steps_by_number,
)

pytestmark = NEEDS_SGLANG
TOKENS = 24
TREE = (3, 3, 8)
SHAPES = [TREE, (2, 2, 5), (0, 1, 1), (1, 1, 2)]
ARGUMENTS = [
    *("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "3"),
    *("--speculative-num-draft-tokens", "8", "--context-length", "512"),
]
ENVIRONMENT = {
    "SPECCTL_SGLANG_OPTIONS": "{}",
    "SPECCTL_SGLANG_CPU_OVERLAP": "1",
    "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
}


@pytest.fixture(scope="module")
def ranks(shared_models, logs) -> Iterator[SglangControl]:
    model = write_experts_with_mtp(shared_models / "reference-target", logs / "sglang-experts")
    head = ["--speculative-draft-model-path", str(shared_models / "reference-eagle3")]
    log = logs / "sglang-ranks.log"
    with controlled_sglang_server(model, log, "EAGLE3", [*ARGUMENTS, *head], ENVIRONMENT) as control:
        yield control


def put(control, *shape, **more):
    put_table(control, rows(*shape, **more))


def ask(control, rank, prompt, **more):
    return control.complete(prompt, TOKENS, routed_dp_rank=rank, **more)


@pytest.fixture(scope="module")
def reference(ranks):
    """Greedy output at 0 drafts."""
    put(ranks, 0)
    return [ask(ranks, 0, prompt) for prompt in PROMPTS]


def test_the_server_is_controllable(ranks):
    capabilities = ranks.get("capabilities")
    assert capabilities["controllable"], capabilities["why_not_controllable"]
    assert (capabilities["experts"], capabilities["experts_per_token"]) == (4, 2)
    assert ranks.get("table")["ranks_behind"] == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_alone_drafts_by_the_table(ranks, reference, rank, shape):
    """The other rank has no request, and runs the passes of the model and of the head all the same."""
    put(ranks, *shape)
    before = steps_by_number(ranks)
    assert ask(ranks, rank, PROMPTS[0]) == reference[0]
    assert grown(steps_by_number(ranks), before) == {shape[0]}


def test_the_busiest_rank_decides_and_outputs_stay_the_same_while_the_table_changes(ranks, reference):
    """Three requests on one rank and one on the other, whose rows differ; then another table, and so on."""
    [alone], [beside] = rows(*TREE), rows(1)
    by_batch = [{**alone, "decode_batch_to": 1}, {**beside, "decode_batch_from": 2}]

    def asked(number):
        return ask(ranks, int(number % 4 == 0), PROMPTS[number % len(PROMPTS)])

    with ThreadPoolExecutor(4) as pool:
        for change in (by_batch, rows(0), rows(*TREE), by_batch, rows(2, 2, 5)):
            put_table(ranks, change)
            numbers = range(2 * len(PROMPTS))
            assert list(pool.map(asked, numbers)) == reference * 2
        running = [pool.submit(asked, number) for number in range(4 * len(PROMPTS))]
        for shape in cycle(SHAPES):
            put(ranks, *shape)
            if all(one.done() for one in running):
                break
        assert [one.result() for one in running] == reference * 4
    assert ranks.get("table")["ranks_behind"] == []
    assert ranks.get("telemetry")["failures"] == {}


def test_a_sample_runs_on_both_ranks(ranks, reference):
    put(ranks, 1, sample={"setting": {"num_speculative_tokens": 2}, "every_steps": 4})
    before = steps_by_number(ranks)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda prompt: ranks.complete(prompt, TOKENS), PROMPTS * 2))
    assert outputs == reference * 2
    assert {1, 2} <= grown(steps_by_number(ranks), before)


def test_a_request_that_no_drafts_may_be_verified_for_leaves_the_other_rank_its_output(ranks, reference):
    """On a CPU SGLang verifies drafts of a sampled request greedily: no rank drafts while it runs. A request
    with a penalty, or with a word of its own, keeps the others' drafts."""
    put(ranks, *TREE)
    own = [
        {"temperature": 1.0, "sampling_seed": 3},
        {"repetition_penalty": 1.3},
        {"custom_params": {"specctl": {"max_draft_tokens": 1}}},
    ]
    with ThreadPoolExecutor(4) as pool:
        for sampling in own:
            before = ranks.get("telemetry")["guarded_steps"], steps_by_number(ranks)
            beside = pool.submit(ask, ranks, 1, PROMPTS[1], sampling=sampling)
            others = [pool.submit(ask, ranks, 0, prompt) for prompt in PROMPTS]
            assert [one.result() for one in others] == reference
            assert len(beside.result()) == TOKENS
            is_guarded = ranks.get("telemetry")["guarded_steps"] > before[0]
            assert is_guarded == ("temperature" in sampling)
            assert is_guarded or 3 in grown(steps_by_number(ranks), before[1])
    assert beside.result() == reference[1]
