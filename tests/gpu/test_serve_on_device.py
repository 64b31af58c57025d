"""`vllm serve` on a GPU: every method starts, obeys the live table and keeps the tokens of no speculation."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.engine_control import controlled_server
from support.on_device import (
    ON_CPU,
    PROMPTS,
    Servers,
    assert_failures_cost_drafts_only,
    assert_our_kernels_verify,
    assert_table_is_obeyed,
    failing_environment,
    need_gpus,
    steps_with,
)
from support.random_models import write_random_dflash, write_tiny_mtp

pytestmark = pytest.mark.gpu
FULL = 5
OURS = {
    "specctl_suffix": {"method": "specctl_suffix"},
    "specctl_peagle": {"method": "specctl_peagle", "model": "reference-peagle"},
    "specctl_hybrid": {"method": "specctl_hybrid", "model": "reference-peagle"},
    "specctl_hybrid, eagle3": {"method": "specctl_hybrid", "head": "eagle3", "model": "reference-eagle3"},
    "specctl_hybrid, draft_model": {
        "method": "specctl_hybrid",
        "head": "draft_model",
        "model": "reference-target",
    },
    "specctl_hybrid, mtp": {"method": "specctl_hybrid", "head": "mtp"},
}
STOCK = {
    "eagle3": {"method": "eagle3", "model": "reference-eagle3"},
    "draft_model": {"method": "draft_model", "model": "reference-target"},
    "mtp": {"method": "mtp"},
    "ngram": {"method": "ngram", "prompt_lookup_max": 4},
    "ngram_gpu": {"method": "ngram_gpu", "prompt_lookup_max": 4},
    "dflash": {"method": "dflash", "model": "random-dflash"},
}
"""Steered by the block ``specctl``."""
METHODS = OURS | {name: {**config, "specctl": {}} for name, config in STOCK.items()}
FAILING = "specctl_suffix, failing"
FAILING_ENTRY = "propose_step" if ON_CPU else "propose"
_CACHE_BYTES = 2 * 2**30
_ARGUMENTS = (
    *("--no-enforce-eager", "--max-num-seqs", "16"),
    *("--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(_CACHE_BYTES)),
)
_DRAFTED = "vllm:spec_decode_num_draft_tokens"


@pytest.fixture(scope="module")
def fail_file(tmp_path_factory):
    return tmp_path_factory.mktemp("failing") / "entry"


@pytest.fixture(scope="module")
def servers(shared_models, tmp_path_factory, fail_file):
    need_gpus()
    logs = tmp_path_factory.mktemp("served")
    target = shared_models / "reference-target"
    arguments = () if ON_CPU else _ARGUMENTS

    def start(name):
        config = {"num_speculative_tokens": FULL, **METHODS[name.removesuffix(", failing")]}
        log, environment = logs / f"{name}.log", None
        if name == "dflash":
            config["model"] = str(write_random_dflash(target, logs / "random-dflash"))
        elif "model" in config:
            config["model"] = str(shared_models / config["model"])
        if name.endswith("mtp"):
            dummy = (*arguments, "--load-format", "dummy")
            return controlled_server(write_tiny_mtp(target, logs / name), log, config, arguments=dummy)
        if name == FAILING:
            environment = failing_environment(fail_file)
        return controlled_server(target, log, config, arguments=arguments, environment=environment)

    with Servers([*METHODS, FAILING], start) as found:
        yield found


@pytest.fixture(scope="module")
def ranks(shared_models, tmp_path_factory):
    need_gpus(2)
    config = {"num_speculative_tokens": FULL, **METHODS["specctl_suffix"]}
    log = tmp_path_factory.mktemp("served") / "ranks.log"
    arguments = (*_ARGUMENTS, "--data-parallel-size", "2")
    with controlled_server(shared_models / "reference-target", log, config, arguments=arguments) as control:
        yield control


def drafted(control):
    families = text_string_to_metric_families(control.client.get("/metrics").text)
    return sum(sample.value for family in families if family.name == _DRAFTED for sample in family.samples)


@pytest.mark.parametrize("method", METHODS)
def test_the_live_table_is_obeyed_and_changes_no_token(servers, method):
    control = servers[method]
    assert control.get("capabilities")["num_speculative_tokens_legal"] == list(range(FULL + 1))
    assert_table_is_obeyed(control, FULL, drafted)
    if method in OURS and not ON_CPU:
        assert_our_kernels_verify(control)


def test_what_raises_while_drafting_costs_drafts_only(servers, fail_file):
    assert_failures_cost_drafts_only(servers[FAILING], fail_file, FAILING_ENTRY)


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
