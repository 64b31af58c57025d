"""What goes with speculation on a real vLLM beside what every request may ask for: adapters, a KV cache that
is too small, tools, images, prompts that another server has computed, and a model in two processes."""

import json
from pathlib import Path

import httpx
import pytest
from support.engine_control import PROMPTS, controlled_server
from support.random_models import write_idefics3, write_random_lora
from support.request_features import (
    assert_calls_are_the_same,
    assert_preempted_answers_are_the_same,
    drafted_tokens,
    images,
)

from testing.servers import vllm_server

pytestmark = pytest.mark.engine
SUFFIX = {"method": "specctl_suffix", "num_speculative_tokens": 8}


def assert_the_same(control, numbers=(8, 0, 3), tokens=32, prompts=PROMPTS, complete=None, **more):
    """Greedy, against 0 drafts. The answers."""
    complete = complete or control.complete
    assert control.put(control.change(0)).status_code == 200
    reference = [complete(prompt, tokens, **more) for prompt in prompts]
    before = drafted_tokens(control)
    for number in numbers:
        assert control.put(control.change(number)).status_code == 200
        assert [complete(prompt, tokens, **more) for prompt in prompts] == reference, number
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


def test_images(target_model, logs):
    model = write_idefics3(target_model, logs / "idefics3")
    with controlled_server(
        model, logs / "images.log", SUFFIX, arguments=["--max-model-len", "512"]
    ) as control:

        def complete(prompt, tokens, image):
            asked = [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
                {"type": "text", "text": prompt},
            ]
            body = {"messages": [{"role": "user", "content": asked}], "max_tokens": tokens, "temperature": 0}
            answer = control.client.post(
                "/v1/chat/completions", json={"model": "model", "return_token_ids": True, **body}
            )
            answer.raise_for_status()
            return answer.json()["choices"][0]["token_ids"]

        one, other = (assert_the_same(control, complete=complete, image=image) for image in images())
        assert one != other


def kv_transfer(connector: str, role: str, **extra) -> list[str]:
    config = {"kv_connector": connector, "kv_role": role, "kv_connector_extra_config": extra}
    return ["--kv-transfer-config", json.dumps(config), "--block-size", "32", "--max-model-len", "512"]


def test_prompts_that_another_server_has_computed(target_model, logs):
    """Prefill and decode apart: the decoding server reads the KV of whole blocks of a prompt from files."""
    shared = {"shared_storage_path": str(logs / "transferred-kv")}
    prompts = [prompt * 12 if len(prompt) < 100 else prompt for prompt in PROMPTS]
    prefill = kv_transfer("ExampleConnector", "kv_producer", **shared)
    with vllm_server(target_model, logs / "prefill.log", None, prefill) as server:
        for prompt in prompts:
            body = {"model": "model", "prompt": prompt, "max_tokens": 1}
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=60.0).raise_for_status()
    log = logs / "decode.log"
    # What is in its own cache is not read again.
    decode = [*kv_transfer("ExampleConnector", "kv_consumer", **shared), "--no-enable-prefix-caching"]
    with controlled_server(target_model, log, SUFFIX, arguments=decode) as control:
        assert_the_same(control, prompts=prompts)
    assert log.read_text(encoding="utf-8").count("Inject KV cache") == 4 * len(prompts)


def test_kv_in_host_memory_is_refused_without_a_gpu(target_model, logs):
    """By vLLM."""
    offload = kv_transfer("OffloadingConnector", "kv_both", cpu_bytes_to_use=1 << 28)
    log = logs / "offload.log"
    with pytest.raises(RuntimeError, match="ended at start"), vllm_server(target_model, log, SUFFIX, offload):
        pass
    assert "CPU Offloading is currently only supported on CUDA-alike" in log.read_text(encoding="utf-8")


def test_pipeline_parallelism_is_refused(target_model, logs):
    log = logs / "pipeline.log"
    with (
        pytest.raises(RuntimeError, match="does not start with pipeline parallelism and speculation"),
        vllm_server(target_model, log, SUFFIX, ["--pipeline-parallel-size", "2"]),
    ):
        pass
