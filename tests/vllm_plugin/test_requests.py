"""A request's own field where vLLM's API server reads requests."""

import importlib.util

import pytest

from specctl.engine.request_field import TOOLS_KEY

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("extra", [None, {}, {"other": 1}, {"specctl": '{"max_draft_tokens": 2}'}])
def test_a_field_that_is_right_passes(extra):
    from specctl_vllm.compat.requests import wrap_verify_args
    from vllm.sampling_params import SamplingParams

    wrap_verify_args(SamplingParams._verify_args)(SamplingParams(extra_args=extra))


def test_one_that_is_wrong_is_the_clients_error():
    from specctl_vllm.compat.requests import wrap_verify_args
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams

    params = SamplingParams(extra_args={"specctl": '{"max_drafts": 2}'})
    with pytest.raises(VLLMValidationError, match="specctl: max_drafts"):
        wrap_verify_args(SamplingParams._verify_args)(params)


@pytest.mark.parametrize(
    ("more", "has_tools"),
    [({}, False), ({"tools": [TOOL]}, True), ({"tools": [TOOL], "tool_choice": "none"}, False)],
)
def test_the_engine_learns_of_tools(more, has_tools):
    from specctl_vllm.compat.requests import wrap_to_sampling_params
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    request = ChatCompletionRequest.model_validate({"model": "m", "messages": MESSAGES, **more})
    read = wrap_to_sampling_params(ChatCompletionRequest.to_sampling_params)
    assert (TOOLS_KEY in (read(request, 8, {}).extra_args or {})) == has_tools
    kept = request.model_copy(update={"vllm_xargs": {"specctl": "{}"}})
    assert read(kept, 8, {}).extra_args == {"specctl": "{}"} | ({TOOLS_KEY: 1} if has_tools else {})
