"""SGLang on a GPU: every algorithm starts, obeys the live table and keeps the tokens of no speculation."""

import pytest
from support.on_device import (
    ON_CPU,
    PROMPTS,
    Servers,
    assert_failures_cost_drafts_only,
    assert_our_kernels_verify,
    assert_table_is_obeyed,
    failing_environment,
    need_gpus,
)
from support.sglang_control import cells_by_number, controlled_sglang_server

pytestmark = pytest.mark.gpu
FULL = 5
_HEAD = "--speculative-draft-model-path"
_WIDTH = ("--speculative-num-draft-tokens", str(FULL + 1))
_CHAIN = ("--speculative-num-steps", str(FULL), "--speculative-eagle-topk", "1", *_WIDTH)
ALGORITHMS = {
    "SPECCTL_SUFFIX": _WIDTH,
    "SPECCTL_PEAGLE": (_HEAD, "reference-peagle", *_WIDTH),
    "NGRAM": _WIDTH,
    "EAGLE3": (_HEAD, "reference-eagle3", *_CHAIN),
    "STANDALONE": (_HEAD, "reference-target", *_CHAIN),
}
FAILING = "SPECCTL_SUFFIX, failing"
_ON_A_GPU = (
    *("--dtype", "float16", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
    *("--cuda-graph-max-bs-decode", "8", "--disable-prefill-cuda-graph"),
)
"""SGLang has no float32 on a GPU. In float16 eight times fewer outputs part by ties than in bf16."""


@pytest.fixture(scope="module")
def fail_file(tmp_path_factory):
    return tmp_path_factory.mktemp("failing") / "entry"


@pytest.fixture(scope="module")
def servers(shared_models, tmp_path_factory, fail_file):
    need_gpus()
    logs, target = tmp_path_factory.mktemp("served"), shared_models / "reference-target"

    def start(name):
        algorithm = name.removesuffix(", failing")
        heads = {word: str(shared_models / word) for word in ALGORITHMS[algorithm] if "reference" in word}
        arguments = [heads.get(word, word) for word in ALGORITHMS[algorithm]]
        environment = {"SPECCTL_SGLANG_OPTIONS": "{}"}
        if name == FAILING:
            environment |= failing_environment(fail_file)
        if ON_CPU:
            environment["SPECCTL_SGLANG_CPU_OVERLAP"] = "1"
        more = {} if ON_CPU else {"module": "sglang.launch_server"}
        arguments += [] if ON_CPU else _ON_A_GPU
        return controlled_sglang_server(
            target, logs / f"{name}.log", algorithm, arguments, environment, **more
        )

    with Servers([*ALGORITHMS, FAILING], start) as found:
        yield found


def drafted(control):
    """Request-steps with drafts so far."""
    cells = [cell for cells in cells_by_number(control).values() for cell in cells]
    return sum(cell["request_steps"] for cell in cells if cell["num_speculative_tokens"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_live_table_is_obeyed_and_changes_no_token(servers, algorithm):
    control = servers[algorithm]
    assert_table_is_obeyed(control, FULL, drafted)
    if algorithm.startswith("SPECCTL_") and not ON_CPU:
        assert_our_kernels_verify(control)


@pytest.mark.parametrize("algorithm", ["SPECCTL_SUFFIX", "EAGLE3"])
def test_min_p_applies_with_drafts_as_without(servers, algorithm):
    """Of a sampled request min-p 1 leaves the most probable token, whatever the temperature."""
    control = servers[algorithm]
    assert control.put(control.change(0)).status_code == 200
    greedy = [control.complete(prompt) for prompt in PROMPTS]
    for number in (0, FULL):
        assert control.put(control.change(number)).status_code == 200
        sampling = {"min_p": 1.0, "temperature": 3.0}
        assert [control.complete(prompt, sampling=sampling) for prompt in PROMPTS] == greedy


def test_what_raises_while_drafting_costs_drafts_only(servers, fail_file):
    assert_failures_cost_drafts_only(servers[FAILING], fail_file, "draft")
