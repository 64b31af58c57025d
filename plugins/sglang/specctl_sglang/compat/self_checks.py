"""Requests of the plugin's own, to SGLang's tokenizer manager as its routes make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.managers.io_struct import GenerateReqInput

from specctl.engine.request_field import FIELD_KEY
from specctl.engine.self_check import FIELD
from specctl_sglang.control.repeated_answers import Generate

__all__ = ["generate_by"]


def generate_by(manager: Any) -> Generate:
    async def generate(
        kept: dict[str, Any], prompt: Sequence[int], tokens: int, **logprobs: Any
    ) -> dict[str, Any] | None:
        asked = GenerateReqInput(
            rid=kept["id"],
            input_ids=list(prompt),
            sampling_params={
                "temperature": 0.0,
                "max_new_tokens": tokens,
                "ignore_eos": True,
                "custom_params": {FIELD_KEY: dict(FIELD)},
            },
            extra_key=kept["extra_key"],
            **logprobs,
        )
        found: dict[str, Any] = {}
        async for part in manager.generate_request(asked, None):
            found = part
        return found if found["meta_info"]["finish_reason"]["type"] != "abort" else None

    return generate
