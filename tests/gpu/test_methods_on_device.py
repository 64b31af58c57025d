"""Our methods on Model Runner V2, against an engine without speculation: `pytest -m gpu tests/gpu`.

Greedy output is compared token for token, in float32; sampled output by a test on the distribution.
"""

import random
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.gpu
DRAFTS = 5
METHODS = {
    "specctl_suffix": {"method": "specctl_suffix"},
    "specctl_peagle": {"method": "specctl_peagle", "model": "reference-peagle"},
    "specctl_peagle, block": {
        "method": "specctl_peagle",
        "model": "reference-peagle",
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    },
    "specctl_hybrid": {"method": "specctl_hybrid", "model": "reference-peagle"},
    "specctl_hybrid, eagle3": {"method": "specctl_hybrid", "head": "eagle3", "model": "reference-eagle3"},
    "specctl_suffix, adaptive": {"method": "specctl_suffix", "enable_adaptive_verification": True},
    "eagle3": {"method": "eagle3", "model": "reference-eagle3", "specctl": {}},
}
"""A stock method is steered by the block specctl."""
TIE = 0.005
"""Two candidates whose log probabilities lie nearer than this are a tie that the batch's shape may decide."""
SAMPLES = 2000
SAMPLED_TOKENS = 4
ALLOWED = list(range(300, 316))
"""A small vocabulary for sampled output."""
P_MIN = 1e-4
"""28 positions of methods are tested: a sound build fails in one run of 350."""
_ENGINE = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 1024,
    "max_num_seqs": 64,
    "gpu_memory_utilization": 0.2,
    "kv_cache_memory_bytes": 4 * 2**30,
    "enable_prefix_caching": False,
}


def prompts(count):
    """Repetitive, so that suffix drafts have something to find; numbers stand for no text."""
    generator = random.Random(7)
    made = []
    for _ in range(count):
        pieces = [
            [generator.randrange(300, 16_000) for _ in range(generator.randint(3, 12))] for _ in range(6)
        ]
        made.append([token for _ in range(generator.randint(8, 30)) for token in generator.choice(pieces)])
    return made


def p_of_same(one, other):
    """Pearson's chi-square test of two samples of one size; what occurs under 10 times is left out."""
    torch = pytest.importorskip("torch")
    counts = torch.tensor([one, other], dtype=torch.float64)
    counts = counts[:, counts.sum(0) >= 10]
    expected = counts.sum(1, keepdim=True) * counts.sum(0, keepdim=True) / counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor(float(max(1, counts.shape[1] - 1)), dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


@contextmanager
def engines(shared_models, logs, devices=1):
    with engines_of(METHODS, shared_models, logs, devices) as found:
        yield found


@contextmanager
def engines_of(methods, shared_models, logs, devices=1):
    """By name, in processes of their own, all at once; ``off`` never speculates."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    if torch.cuda.device_count() < devices:
        pytest.skip(f"{torch.cuda.device_count()} GPUs, expected {devices}")
    from support.gpu_arms import speculative, started

    base = _ENGINE | {"tensor_parallel_size": devices}
    asked = {"off": base}
    for name, config in methods.items():
        head = {"model": str(shared_models / config["model"])} if "model" in config else {}
        asked[name] = base | speculative(num_speculative_tokens=DRAFTS, **(config | head))
    found = started(asked, str(shared_models / "reference-target"), logs)
    try:
        yield {arm.name: arm for arm in found}
    finally:
        for arm in found:
            arm.stop()


@pytest.fixture(scope="module")
def arms(shared_models, tmp_path_factory):
    with engines(shared_models, tmp_path_factory.mktemp("arms")) as found:
        yield found


@pytest.fixture(scope="module")
def ranks(shared_models, tmp_path_factory):
    with engines(shared_models, tmp_path_factory.mktemp("ranks"), devices=2) as found:
        yield found


def assert_greedy_is_kept(arms, method, requests, numbers):
    from support.gpu_arms import margins

    asked = prompts(requests)
    truth = arms["off"].run(asked, 96, wants_outputs=True)["outputs"]
    for number in numbers:
        got = arms[method].run(asked, 96, wants_outputs=True, num_speculative_tokens=number)["outputs"]
        parted = margins(arms["off"], asked, got, truth)
        print(method, requests, number, "answers that part, with their margins:", parted)
        assert all(margin < TIE for margin in parted.values()), (number, parted)
        assert len(parted) <= 1 + requests // 16, (number, parted)


@pytest.mark.parametrize("requests", [1, 7, 64])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_output_is_that_of_no_speculation_at_every_number(arms, method, requests):
    assert_greedy_is_kept(arms, method, requests, (*range(DRAFTS, -1, -1), DRAFTS))


@pytest.mark.parametrize("method", METHODS)
def test_two_tensor_parallel_ranks_give_what_they_give_without_speculation(ranks, method):
    assert_greedy_is_kept(ranks, method, 16, (DRAFTS, 2, 0, DRAFTS))


@pytest.mark.parametrize("method", METHODS)
def test_sampled_output_has_the_same_distribution_at_each_position(arms, method):
    asked = prompts(1) * SAMPLES
    sampling = {"temperature": 1.0, "allowed_token_ids": ALLOWED}
    truth, got = (
        arms[name].run(asked, SAMPLED_TOKENS, wants_outputs=True, sampling=sampling, **number)["outputs"]
        for name, number in (("off", {}), (method, {"num_speculative_tokens": DRAFTS}))
    )
    for position in range(SAMPLED_TOKENS):
        counts = [
            [sum(output[position] == token for output in outputs) for token in ALLOWED]
            for outputs in (truth, got)
        ]
        assert p_of_same(*counts) > P_MIN, (position, counts)
