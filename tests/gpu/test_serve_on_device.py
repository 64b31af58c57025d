"""The servers of the README on a GPU: `vllm serve`, its routes, its metrics and the live table."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.engine_control import controlled_server
from support.random_head import write_random_dflash

from specctl.contract.telemetry import Telemetry

pytestmark = pytest.mark.gpu
FULL = 5
METHODS = {
    "specctl_suffix": {"method": "specctl_suffix"},
    "specctl_peagle": {"method": "specctl_peagle", "model": "reference-peagle"},
    "specctl_hybrid": {"method": "specctl_hybrid", "model": "reference-peagle"},
    "eagle3": {"method": "eagle3", "model": "reference-eagle3", "specctl": {}},
    "ngram_gpu": {"method": "ngram_gpu", "prompt_lookup_max": 4, "specctl": {}},
    "dflash": {"method": "dflash", "model": "random-dflash", "specctl": {}},
}
_CACHE_BYTES = 2 * 2**30
_ARGUMENTS = (
    *("--no-enforce-eager", "--max-num-seqs", "16"),
    *("--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(_CACHE_BYTES)),
)
PROMPTS = [
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    '{"name": "x", "value": 1}\n{"name": "y", "value": 2}\n{"name":',
]
_DRAFTED = "vllm:spec_decode_num_draft_tokens"


@pytest.fixture(scope="module")
def servers(shared_models, tmp_path_factory):
    """Started at the same time."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    logs = tmp_path_factory.mktemp("served")
    made = {"random-dflash": write_random_dflash(shared_models / "reference-target", logs / "random-dflash")}

    def start(name):
        config = {"num_speculative_tokens": FULL, **METHODS[name]}
        if "model" in config:
            config["model"] = str(made.get(config["model"], shared_models / config["model"]))
        server = controlled_server(
            shared_models / "reference-target", logs / f"{name}.log", config, arguments=_ARGUMENTS
        )
        return stack.enter_context(server)

    with ExitStack() as stack, ThreadPoolExecutor(len(METHODS)) as pool:
        yield dict(zip(METHODS, pool.map(start, METHODS), strict=True))


@pytest.fixture(scope="module")
def ranks(shared_models, tmp_path_factory):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip(f"{torch.cuda.device_count()} GPUs, expected 2")
    config = {"num_speculative_tokens": FULL, **METHODS["specctl_suffix"]}
    log = tmp_path_factory.mktemp("served") / "ranks.log"
    arguments = (*_ARGUMENTS, "--data-parallel-size", "2")
    with controlled_server(shared_models / "reference-target", log, config, arguments=arguments) as control:
        yield control


def steps_with(control, value):
    cells = Telemetry.model_validate(control.get("telemetry")).cells
    return sum(cell.request_steps for cell in cells if cell.num_speculative_tokens == value)


def drafted(control):
    families = text_string_to_metric_families(control.client.get("/metrics").text)
    return sum(sample.value for family in families if family.name == _DRAFTED for sample in family.samples)


@pytest.mark.parametrize("method", METHODS)
def test_the_live_table_is_obeyed_and_changes_no_token(servers, method):
    control = servers[method]
    capabilities = control.get("capabilities")
    assert capabilities["controllable"], capabilities
    assert capabilities["num_speculative_tokens_legal"] == list(range(FULL + 1))
    assert control.put(control.change(0)).status_code == 200
    reference = [control.complete(prompt) for prompt in PROMPTS]
    for value in (FULL, 2, 0, FULL):
        assert control.put(control.change(value)).status_code == 200
        before, drafts = steps_with(control, value), drafted(control)
        assert [control.complete(prompt) for prompt in PROMPTS] == reference
        assert steps_with(control, value) > before
        assert (drafted(control) > drafts) == (value > 0)


def test_data_parallel_ranks_obey_one_table(ranks):
    assert ranks.get("capabilities")["controllable"]
    assert ranks.put(ranks.change(0)).status_code == 200
    reference = [ranks.complete(prompt) for prompt in PROMPTS]
    for value in (FULL, 2, 0):
        assert ranks.put(ranks.change(value)).status_code == 200
        before = steps_with(ranks, value)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ranks.complete, PROMPTS * 4))
        assert answers == reference * 4
        assert steps_with(ranks, value) > before
        assert not ranks.get("table")["ranks_behind"]
