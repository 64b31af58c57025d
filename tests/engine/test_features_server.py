"""What goes with speculation on a real vLLM beside what every request may ask for: adapters, a KV cache that
is too small, tools, and a model in two processes."""

from pathlib import Path

import pytest
from support.engine_control import PROMPTS, controlled_server
from support.random_models import write_random_lora
from support.request_features import (
    assert_calls_are_the_same,
    assert_preempted_answers_are_the_same,
    drafted_tokens,
)

from testing.servers import vllm_server

pytestmark = pytest.mark.engine
SUFFIX = {"method": "specctl_suffix", "num_speculative_tokens": 8}


def assert_the_same(control, numbers=(8, 0, 3), tokens=32, **more):
    """Greedy, against 0 drafts. The answers."""
    assert control.put(control.change(0)).status_code == 200
    reference = [control.complete(prompt, tokens, **more) for prompt in PROMPTS]
    before = drafted_tokens(control)
    for number in numbers:
        assert control.put(control.change(number)).status_code == 200
        assert [control.complete(prompt, tokens, **more) for prompt in PROMPTS] == reference, number
    assert drafted_tokens(control) > before
    return reference


@pytest.fixture(scope="module")
def server(target_model: Path, logs: Path):
    """With an adapter, and KV for three requests of the tests."""
    adapter = write_random_lora(target_model, logs / "adapter")
    arguments = [
        *("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"adapter={adapter}"),
        *("--max-model-len", "512", "--block-size", "32", "--num-gpu-blocks-override", "20"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    with controlled_server(target_model, logs / "features.log", SUFFIX, arguments=arguments) as control:
        yield control


def test_preempted_answers_are_the_same(server):
    assert_preempted_answers_are_the_same(server, "vllm:num_preemptions_total", PROMPTS, 120, (8, 0, 3))


def test_adapters(server):
    plain = assert_the_same(server)
    assert assert_the_same(server, model="adapter") != plain


def test_tool_calls(server):
    assert_calls_are_the_same(server, (8, 3))


def test_a_model_in_two_processes(target_model, logs):
    arguments = ["--tensor-parallel-size", "2", "--max-model-len", "512"]
    with controlled_server(target_model, logs / "two-ranks.log", SUFFIX, arguments=arguments) as control:
        assert control.get("capabilities")["controllable"]
        assert_the_same(control)


def test_pipeline_parallelism_is_refused(target_model, logs):
    log = logs / "pipeline.log"
    with (
        pytest.raises(RuntimeError, match="does not start with pipeline parallelism and speculation"),
        vllm_server(target_model, log, SUFFIX, ["--pipeline-parallel-size", "2"]),
    ):
        pass
