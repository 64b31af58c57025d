"""Sampled requests verified by our kernels, against vLLM's sampler: `pytest -m gpu tests/gpu`.

Sampled output is compared by a test on the distribution, position by position. vLLM refuses min_p and
logit_bias where speculation is on, so no engine asks for them.
"""

from collections import Counter

import pytest
from gpu.test_methods_on_device import P_MIN, engines_of, p_of_same, prompts

from specctl.engine.verified_batches import ENGINES, OURS

pytestmark = pytest.mark.gpu
DRAFTS = 5
SAMPLES = 2000
TOKENS = 4
PROPOSERS = {
    "suffix": {"method": "specctl_suffix", "use_global": False},
    "peagle": {
        "method": "specctl_peagle",
        "model": "reference-peagle",
        "draft_sample_method": "probabilistic",
    },
}
"""Of suffix, drafts from a request's own text alone: those from other answers change while the corpus learns,
and with a seed the tokens depend on the drafts."""
SAMPLINGS = {
    "temperature": {"temperature": 0.3},
    "top-k": {"temperature": 1.0, "top_k": 6},
    "top-p": {"temperature": 0.7, "top_p": 0.6},
}
SAME_MIN = 0.9
"""Of seeded answers in another batch: logits differ in their last bits there, and an answer that draws next
to an edge takes another path."""


@pytest.fixture(scope="module")
def arms(shared_models, tmp_path_factory):
    asked = {
        f"{name}, {verify}": {**config, "specctl": {"verify": verify}}
        for name, config in PROPOSERS.items()
        for verify in ("specctl", "engine")
    }
    with engines_of(asked, shared_models, tmp_path_factory.mktemp("arms")) as found:
        yield found


def verified(arm, asked, sampling, **values):
    """(outputs, by whom batches were verified meanwhile)."""
    before = arm.run(asked[:1], 1, wants_telemetry=True)["telemetry"]["proposer"]
    answer = arm.run(asked, TOKENS, wants_outputs=True, wants_telemetry=True, sampling=sampling, **values)
    after = answer["telemetry"]["proposer"]
    counts = {
        name: value - before.get(name, 0) for name, value in after.items() if name.startswith("batches_")
    }
    return answer["outputs"], {name: value for name, value in counts.items() if value}


@pytest.mark.parametrize("options", SAMPLINGS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_sampled_output_is_distributed_as_the_engines(arms, proposer, options):
    asked = prompts(1) * SAMPLES
    got, counts = verified(arms[f"{proposer}, specctl"], asked, SAMPLINGS[options])
    truth, _ = verified(arms[f"{proposer}, engine"], asked, SAMPLINGS[options])
    assert counts[OURS] > 0, counts
    assert not any(name.startswith(ENGINES) for name in counts), counts
    for position in range(TOKENS):
        seen = [Counter(output[position] for output in outputs) for outputs in (got, truth)]
        ids = sorted(seen[0].keys() | seen[1].keys())
        assert p_of_same(*([one[token] for token in ids] for one in seen)) > P_MIN, (position, seen)


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_a_seed_gives_the_same_answer_in_another_batch(arms, proposer):
    arm = arms[f"{proposer}, specctl"]
    asked = prompts(40)
    sampling = {"temperature": 0.8, "top_p": 0.95, "seed": 11}
    alone, _ = verified(arm, asked[:20], sampling)
    among, _ = verified(arm, asked, sampling)
    again, _ = verified(arm, asked, sampling)
    for other in (among[:20], again[:20]):
        assert sum(a == b for a, b in zip(alone, other, strict=True)) >= SAME_MIN * 20


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"repetition_penalty": 1.3}, "penalties"),
        ({"min_tokens": 2}, "logit_bias"),
    ],
)
def test_what_ours_do_not_cover_is_the_engines_and_counted(arms, sampling, reason):
    _, counts = verified(arms["suffix, specctl"], prompts(8), {"temperature": 0.8, **sampling})
    assert counts.get(ENGINES + reason, 0) > 0, counts


def test_engine_leaves_the_sampler_alone(arms):
    for sampling in ({"temperature": 0.8}, {"temperature": 0.0}):
        _, counts = verified(arms["suffix, engine"], prompts(8), sampling)
        assert counts == {}
