"""What goes with speculation on a real SGLang: the same answers from a suffix index and from a head, as
chains and as trees, while prompts come in chunks and requests lose their KV to others."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.engine_control import LISTING
from support.random_models import write_idefics3, write_random_lora
from support.request_features import (
    LOGPROB_TOLERANCE,
    assert_aborts_leave_others_alone,
    assert_calls_are_the_same,
    assert_chunks_change_nothing,
    assert_preempted_answers_are_the_same,
    assert_prefixes_are_found,
    drafted_tokens,
    images,
)
from support.sglang_control import NEEDS_SGLANG, PROMPTS, controlled_sglang_server, rows

from testing.servers import sglang_server

pytestmark = NEEDS_SGLANG
KV_TOKENS, CHUNK = 640, 64
ARGUMENTS = [
    *("--max-total-tokens", str(KV_TOKENS), "--chunked-prefill-size", str(CHUNK)),
    # It admits more requests than it has KV for.
    *("--schedule-conservativeness", "0.1"),
    *("--grammar-backend", "xgrammar", "--constrained-json-disable-any-whitespace"),
    *("--tool-call-parser", "qwen25", "--enable-metrics"),
]
EAGLE3 = [
    *("--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "3"),
    *("--speculative-num-draft-tokens", "8"),
]
OPTIONS = {
    "SPECCTL_SUFFIX": ["--speculative-num-draft-tokens", "9", "--speculative-eagle-topk", "4"],
    "EAGLE3": EAGLE3,
}
CANDIDATES = {"SPECCTL_SUFFIX": [0, 1, 2, 3, 8], "EAGLE3": [0, 1, 2, 3]}
SHAPES = {
    "SPECCTL_SUFFIX": [(8, 1, 9), (3, 2, 4)],
    "EAGLE3": [(3, 3, 8), (2, 1, 3)],
}
PARALLEL = {"tensor": ["--tp-size", "2"], "data": ["--dp-size", "2"]}


def head(models: Path) -> list[str]:
    return ["--speculative-draft-model-path", str(models / "reference-eagle3")]


@pytest.fixture(scope="module", params=list(OPTIONS))
def method(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def server(method: str, shared_models: Path, logs: Path):
    arguments = [*OPTIONS[method], *ARGUMENTS, *(head(shared_models) if method == "EAGLE3" else [])]
    log = logs / f"sglang-features-{method}.log"
    environment = {
        "SPECCTL_SGLANG_CPU_OVERLAP": "1",
        "SPECCTL_SGLANG_OPTIONS": json.dumps({"candidates": CANDIDATES[method]}),
    }
    model = shared_models / "reference-target"
    with controlled_sglang_server(model, log, method, arguments, environment) as control:
        yield control


@pytest.fixture
def put_shape(server):
    def put(*shape: int) -> None:
        assert server.put(server.change(0, rows=rows(*shape))).status_code == 200

    return put


def test_off_costs_no_prefix_hits(server):
    assert_prefixes_are_found(server, "sglang:cached_tokens_total", "A list. " + LISTING * 2, (2, 0, 1, 0))


@pytest.mark.parametrize("number", [2, 0])
def test_a_prompt_in_chunks_at_every_number(server, number):
    def answer(control, prompt, salt):
        sampling = {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}
        asked = {"input_ids": list(prompt), "sampling_params": sampling, "extra_key": salt}
        found = control.client.post("/generate", json=asked)
        found.raise_for_status()
        return found.json()["output_ids"]

    assert_chunks_change_nothing(server, 3 * CHUNK, PROMPTS[1:], number, answer, beside_tokens=60)


def test_preempted_answers_are_the_same(server):
    """The fewer tokens a request asks for, the more of them are admitted at once, and outgrow the cache."""
    assert_preempted_answers_are_the_same(
        server, "sglang:num_retracted_requests_total", PROMPTS, 64, (2, 0, 1)
    )


def test_aborts_while_the_table_changes(server):
    assert server.put(server.change(0)).status_code == 200
    plain = [server.complete(prompt) for prompt in PROMPTS]
    assert_aborts_leave_others_alone(server, PROMPTS, plain, (2, 0, 1, 2), tokens=300)


def test_log_probabilities(server, method, put_shape):
    def answers():
        asked = {"return_logprob": True, "top_logprobs_num": 3}
        found = [server.generate(prompt, 24, **asked)["meta_info"] for prompt in PROMPTS]
        chosen = [one["output_token_logprobs"] for one in found]
        tops = [one["output_top_logprobs"] for one in found]
        return (
            [[token for _, token, _ in one] for one in chosen],
            [[value for value, _, _ in one] for one in chosen],
            [[value for position in one for value, _, _ in position] for one in tops],
        )

    put_shape(0, 1, 1)
    tokens, chosen, tops = answers()
    for shape in SHAPES[method]:
        put_shape(*shape)
        again = answers()
        assert again[0] == tokens
        for found, wanted in ((again[1], chosen), (again[2], tops)):
            for one, other in zip(found, wanted, strict=True):
                assert one == pytest.approx(other, abs=LOGPROB_TOLERANCE)


def test_min_p_applies_with_drafts_as_without(server, method, put_shape):
    """Of a sampled request min-p 1 leaves the most probable token, whatever the temperature."""
    greedy, sampled = {"min_p": 0.3}, {"min_p": 1.0, "temperature": 3.0}
    put_shape(0, 1, 1)
    without = [server.complete(prompt) for prompt in PROMPTS]
    for shape in ((0, 1, 1), *SHAPES[method]):
        put_shape(*shape)
        for sampling in (greedy, sampled):
            assert [server.complete(prompt, sampling=sampling) for prompt in PROMPTS] == without


def test_tool_calls(server):
    assert_calls_are_the_same(server, (2, 1))


def test_bad_words_are_refused(server):
    """SGLang has no such parameter, and says so."""
    asked = {"text": "x", "sampling_params": {"max_new_tokens": 2, "bad_words": ["load"]}}
    answer = server.client.post("/generate", json=asked)
    assert answer.status_code == 400
    assert "bad_words" in answer.text


def test_adapters_are_refused_beside_the_suffix_method(shared_models, logs):
    target = shared_models / "reference-target"
    adapter = write_random_lora(target, logs / "refused-adapter")
    more = ["--lora-paths", f"adapter={adapter}", "--lora-backend", "torch_native"]
    with (
        pytest.raises(RuntimeError, match="LoRA is only compatible with"),
        sglang_server(target, logs / "refused-adapters.log", "SPECCTL_SUFFIX", more),
    ):
        pass


@pytest.mark.parametrize("kind", PARALLEL)
def test_a_model_in_two_processes(kind, shared_models, logs):
    target = shared_models / "reference-target"
    arguments = [*OPTIONS["SPECCTL_SUFFIX"], *PARALLEL[kind]]
    log, cores = logs / f"sglang-{kind}.log", {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    with controlled_sglang_server(target, log, "SPECCTL_SUFFIX", arguments, cores) as control:
        assert control.get("capabilities")["controllable"]
        assert control.put(control.change(0)).status_code == 200
        reference = [control.complete(prompt) for prompt in PROMPTS]
        before = drafted_tokens(control)
        for shape in ((8, 1, 9), (3, 2, 4), (0, 1, 1)):
            assert control.put(control.change(0, rows=rows(*shape))).status_code == 200
            with ThreadPoolExecutor(8) as pool:
                assert list(pool.map(control.complete, PROMPTS * 2)) == reference * 2, shape
        assert drafted_tokens(control) > before


def test_images(target_model, logs):
    model = write_idefics3(target_model, logs / "idefics3-sglang")
    with controlled_sglang_server(
        model, logs / "sglang-images.log", "SPECCTL_SUFFIX", OPTIONS["SPECCTL_SUFFIX"]
    ) as control:

        def answers(image):
            asked = {"image_data": f"data:image/png;base64,{image}"}
            return [control.complete(f"<image>{prompt}", **asked) for prompt in PROMPTS]

        assert control.put(control.change(0)).status_code == 200
        one, other = images()
        reference = {image: answers(image) for image in (one, other)}
        assert reference[one] != reference[other]
        before = drafted_tokens(control)
        for shape in SHAPES["SPECCTL_SUFFIX"]:
            assert control.put(control.change(0, rows=rows(*shape))).status_code == 200
            assert {image: answers(image) for image in (one, other)} == reference, shape
        assert drafted_tokens(control) > before
