"""Our methods on Model Runner V2, against an engine without speculation: `pytest -m gpu tests/gpu`.

Greedy output is compared token for token, in float32; sampled output by a test on the distribution.
"""

import random

import pytest

pytestmark = pytest.mark.gpu
DRAFTS = 5
HEADS = {
    "specctl_suffix": {},
    "specctl_peagle": {"model": "reference-peagle"},
    "specctl_hybrid": {"model": "reference-peagle"},
    "eagle3": {"model": "reference-eagle3", "specctl": {}},
}
"""By method; a stock one is steered by the block specctl."""
SAMPLES = 2000
SAMPLED_TOKENS = 4
ALLOWED = list(range(300, 316))
"""A small vocabulary for sampled output."""
P_MIN = 1e-4
"""16 positions of methods are tested: a sound build fails in one run of 600."""
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


@pytest.fixture(scope="module")
def arms(shared_models, tmp_path_factory):
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from benchmarks.gpu.arms import speculative, started

    engines = {"off": _ENGINE}
    for method, head in HEADS.items():
        own = head | {"model": str(shared_models / head["model"])} if head else {}
        engines[method] = _ENGINE | speculative(method, num_speculative_tokens=DRAFTS, **own)
    found = started(engines, str(shared_models / "reference-target"), tmp_path_factory.mktemp("arms"))
    yield {arm.name: arm for arm in found}
    for arm in found:
        arm.stop()


@pytest.mark.parametrize("requests", [1, 7, 64])
@pytest.mark.parametrize("method", HEADS)
def test_greedy_output_is_that_of_no_speculation_at_every_number(arms, method, requests):
    asked = prompts(requests)
    truth = arms["off"].run(asked, 96, wants_outputs=True)["outputs"]
    for number in (*range(DRAFTS, -1, -1), DRAFTS):
        got = arms[method].run(asked, 96, wants_outputs=True, num_speculative_tokens=number)["outputs"]
        assert [i for i, (a, b) in enumerate(zip(got, truth, strict=True)) if a != b] == [], number


@pytest.mark.parametrize("method", HEADS)
def test_sampled_output_has_the_same_distribution_at_each_position(arms, method):
    stats = pytest.importorskip("scipy.stats")
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
        seen = [pair for pair in zip(*counts, strict=True) if sum(pair) >= 10]
        p = stats.chi2_contingency(list(zip(*seen, strict=True))).pvalue if len(seen) > 1 else 1.0
        assert p > P_MIN, (position, counts)
