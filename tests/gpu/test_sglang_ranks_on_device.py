"""Two ranks of a mixture of experts with data-parallel attention on SGLang, which run every step together.

The layer that drafts for NEXTN has experts, too: a rank that made fewer passes of it would wait for ever.
"""

import json
from functools import partial
from itertools import cycle

import pytest
from support.expert_models import write_experts_with_mtp
from support.on_device import ON_CPU, Servers, need_gpus
from support.ranks import (
    MANY_PROMPTS,
    assert_same,
    greedy_without_drafts,
    grown,
    put_table,
    streams_while_changing,
)
from support.sglang_control import controlled_sglang_server, rows, steps_by_number

pytestmark = pytest.mark.gpu
TREE = (3, 4, 8)
PREPARED = {"candidates": [0, 1, 2, 3], "trees": [[2, 2, 5]]}
TOKENS, SECONDS, CHANGE_S = 64, 8.0, 0.4
_HEAD = ("--speculative-draft-model-path", "reference-eagle3")
METHODS = {"NEXTN": (), "EAGLE3": _HEAD}
if ON_CPU:
    # SGLang's MTP layers of this model wait for CUDA.
    METHODS = {"EAGLE3": _HEAD}
_ARGUMENTS = (
    *("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention", "--context-length", "1024"),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "4"),
    *("--speculative-num-draft-tokens", "8", "--max-running-requests", "16"),
)
_ON_A_GPU = (
    *("--dtype", "float16", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
    *("--cuda-graph-max-bs-decode", "8", "--disable-prefill-cuda-graph", "--attention-backend", "triton"),
    *("--mem-fraction-static", "0.2", "--disable-radix-cache"),
)
TIE = 0.03
"""In float16, two candidates whose log probabilities lie nearer than this are a tie that the batch's shape
may decide."""


@pytest.fixture(scope="module")
def servers(shared_models, tmp_path_factory):
    if not ON_CPU:
        need_gpus(2)
    logs = tmp_path_factory.mktemp("sglang-ranks")
    model = write_experts_with_mtp(shared_models / "reference-target", logs / "model")

    def start(name):
        heads = [str(shared_models / word) if "reference" in word else word for word in METHODS[name]]
        environment = {"SPECCTL_SGLANG_OPTIONS": json.dumps(PREPARED)}
        if ON_CPU:
            environment |= {"SPECCTL_SGLANG_CPU_OVERLAP": "1", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
        more = {} if ON_CPU else {"module": "sglang.launch_server"}
        arguments = [*_ARGUMENTS, *heads, *(() if ON_CPU else _ON_A_GPU)]
        log = logs / f"{name}.log"
        return controlled_sglang_server(model, log, name, arguments, environment, **more)

    with Servers(METHODS, start) as found:
        yield found


@pytest.fixture(params=METHODS)
def ranks(servers, request):
    return servers[request.param]


def ask(control, number, rank):
    return control.complete(MANY_PROMPTS[number % len(MANY_PROMPTS)], TOKENS, routed_dp_rank=rank)


@pytest.fixture(scope="module")
def references():
    """By server: greedy output at 0 drafts."""
    return {}


@pytest.fixture
def reference(ranks, references):
    return greedy_without_drafts(references, ranks, partial(ask, ranks))


def same(control, reference, answers):
    put_table(control, 0)
    assert_same(reference, answers, partial(scores, control), TIE)


def scores(control, number, before):
    ids = control.client.post("/tokenize", json={"model": "model", "prompt": MANY_PROMPTS[number]}).json()
    body = {
        "input_ids": ids["tokens"] + before,
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "top_logprobs_num": 4,
    }
    found = control.client.post("/generate", json=body).json()["meta_info"]["output_top_logprobs"][0]
    return {token: score for score, token, *_ in found}


def test_the_table_can_be_changed(ranks):
    capabilities = ranks.get("capabilities")
    assert capabilities["controllable"], capabilities["why_not_controllable"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_alone_drafts_by_the_table(ranks, reference, rank):
    """The other one makes the passes of the model and of the head all the same."""
    for shape in (TREE, (1, 1, 2), (0, 1, 1), (2, 2, 5)):
        put_table(ranks, rows(*shape))
        ask(ranks, 0, rank)
        before = steps_by_number(ranks)
        answers = [(one, ask(ranks, one, rank)) for one in range(len(MANY_PROMPTS))]
        assert grown(steps_by_number(ranks), before) == {shape[0]}
        same(ranks, reference, answers)


def _by_batch(*shapes):
    """One for each size of a batch from 1 on, two at a time."""
    made = [rows(*shape)[0] for shape in shapes]
    for number, row in enumerate(made):
        row["decode_batch_from"] = 1 + 2 * number
        row["decode_batch_to"] = None if row is made[-1] else 2 + 2 * number
    return made


TABLES = [
    rows(*TREE),
    _by_batch(TREE, (1, 1, 2), (0, 1, 1)),
    rows(0),
    rows(1, sample={"setting": {"num_speculative_tokens": 3}, "every_steps": 4}),
    rows(2, 2, 5),
    rows(3, sample={"setting": {"num_speculative_tokens": 0}, "every_steps": 4}),
]


@pytest.mark.parametrize("of_rank", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1)])
def test_answers_stay_the_same_while_the_table_changes(ranks, reference, of_rank):
    """of_rank: where eight streams of requests go, in turn."""
    tables = (put_table(ranks, table) for table in cycle(TABLES))
    answers = streams_while_changing(partial(ask, ranks), of_rank, tables, SECONDS, CHANGE_S)
    print(steps_by_number(ranks))
    telemetry = ranks.get("telemetry")
    assert (telemetry["failures"], telemetry["guarded_steps"]) == ({}, 0)
    assert ranks.get("table")["ranks_behind"] == []
    assert sum(cell["sampled_steps"] for cell in telemetry["cells"]) > 0
    same(ranks, reference, answers)
