"""Two data-parallel ranks of a mixture of experts on two GPUs, which run every step together.

The head of ``mtp`` has experts, too: a rank that made fewer passes of it would wait for ever.
"""

from functools import partial
from itertools import cycle

import pytest
from support.engine_control import controlled_server
from support.expert_models import write_experts, write_experts_with_mtp
from support.on_device import Servers, need_gpus
from support.ranks import (
    MANY_PROMPTS,
    assert_same,
    complete_on,
    greedy_without_drafts,
    grown,
    put_table,
    steps,
    streams_while_changing,
)

pytestmark = pytest.mark.gpu
FULL, TOKENS, SECONDS, CHANGE_S = 3, 64, 8.0, 0.4
METHODS = {"mtp": {"method": "mtp"}, "eagle3": {"method": "eagle3", "model": "reference-eagle3"}}
MORE_ARGUMENTS = {"mtp": (), "eagle3": ("--enable-expert-parallel",)}
_ARGUMENTS = (
    *("--data-parallel-size", "2", "--no-enforce-eager", "--max-num-seqs", "16"),
    "--no-enable-prefix-caching",
    *("--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(2**30)),
)
TIE = 0.005
"""Two candidates whose log probabilities lie nearer than this are a tie that the batch's shape may decide."""


@pytest.fixture(scope="module")
def servers(shared_models, tmp_path_factory):
    need_gpus(2)
    logs = tmp_path_factory.mktemp("ranks")
    target = shared_models / "reference-target"

    def start(name):
        config = {"num_speculative_tokens": FULL, **METHODS[name], "specctl": {}}
        if "model" in config:
            config["model"] = str(shared_models / config["model"])
        write = write_experts_with_mtp if name == "mtp" else write_experts
        model = write(target, logs / f"{name}-model")
        arguments = (*_ARGUMENTS, *MORE_ARGUMENTS[name])
        return controlled_server(model, logs / f"{name}.log", config, arguments=arguments)

    with Servers(METHODS, start) as found:
        yield found


@pytest.fixture(params=METHODS)
def ranks(servers, request):
    return servers[request.param]


def ask(control, number, rank):
    return complete_on(rank, control, MANY_PROMPTS[number % len(MANY_PROMPTS)], TOKENS, timeout_s=60.0)


@pytest.fixture(scope="module")
def references():
    """By server: greedy output at 0 drafts."""
    return {}


@pytest.fixture
def reference(ranks, references):
    return greedy_without_drafts(references, ranks, partial(ask, ranks))


def same(control, reference, answers):
    assert_same(reference, answers, partial(scores, control), TIE)


def scores(control, number, before):
    ids = control.client.post("/tokenize", json={"model": "model", "prompt": MANY_PROMPTS[number]}).json()[
        "tokens"
    ]
    body = {"model": "model", "prompt": ids + before, "max_tokens": 1, "temperature": 0, "logprobs": 2}
    answer = control.client.post("/v1/completions", json={**body, "return_tokens_as_token_ids": True}).json()
    found = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return {int(name.removeprefix("token_id:")): score for name, score in found.items()}


def test_the_table_can_be_changed(ranks):
    capabilities = ranks.get("capabilities")
    assert capabilities["controllable"], capabilities["why_not_controllable"]
    assert capabilities["experts"] == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_alone_drafts_by_the_table(ranks, reference, rank):
    """The other one makes the passes of the model and of the head all the same."""
    for number in (FULL, 1, 0, 2):
        put_table(ranks, number)
        before = steps(ranks)
        same(ranks, reference, [(one, ask(ranks, one, rank)) for one in range(len(MANY_PROMPTS))])
        assert grown(steps(ranks), before) == {number}


TABLES = [
    FULL,
    [
        {"decode_batch_from": 1, "decode_batch_to": 2, "num_speculative_tokens": FULL},
        {"decode_batch_from": 3, "decode_batch_to": 4, "num_speculative_tokens": 1},
        {"decode_batch_from": 5, "num_speculative_tokens": 0},
    ],
    0,
    [
        {
            "decode_batch_from": 1,
            "num_speculative_tokens": 1,
            "sample": {"setting": {"num_speculative_tokens": FULL}, "every_steps": 4},
        }
    ],
    2,
    [
        {
            "decode_batch_from": 1,
            "num_speculative_tokens": FULL,
            "sample": {"setting": {"num_speculative_tokens": 0}, "every_steps": 4},
        }
    ],
]


@pytest.mark.parametrize("of_rank", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1)])
def test_answers_stay_the_same_while_the_table_changes(ranks, reference, of_rank):
    """of_rank: where eight streams of requests go, in turn."""
    tables = (put_table(ranks, table) for table in cycle(TABLES))
    answers = streams_while_changing(partial(ask, ranks), of_rank, tables, SECONDS, CHANGE_S)
    print(steps(ranks))
    same(ranks, reference, answers)
    telemetry = ranks.get("telemetry")
    assert (telemetry["failures"], telemetry["guarded_steps"]) == ({}, 0)
    assert ranks.get("table")["ranks_behind"] == []
    assert sum(cell["sampled_steps"] for cell in telemetry["cells"]) > 0
