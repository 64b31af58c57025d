"""Which profile is of just this server."""

from __future__ import annotations

import pytest

from specctl.contract.capabilities import Capabilities
from specctl.engine_profile import EngineProfile, load_profile, profile_of
from specctl.simulate.files import find_file

SHIPPED = load_profile(find_file("h200-llama8b-vllm032", "profiles"))
SERVER = Capabilities(
    contract_version=1,
    engine="vllm",
    engine_version="0.32.0",
    plugin_version="0.1.0",
    boot_id="b",
    model="llama-8b",
    method="specctl_suffix",
    controllable=True,
    num_speculative_tokens_legal=(0, 4, 8),
    decode_batch_max=256,
    context_max_tokens=131_072,
    decode_batch_buckets=(256,),
    rows_max=64,
    lease_max_s=3600.0,
    has_shadow_acceptance=False,
    gpu="NVIDIA H200",
    dtype="bfloat16",
    parallelism="tp1",
)


def other(**parts: str) -> EngineProfile:
    fingerprint = SHIPPED.fingerprint.model_copy(update=parts)
    return SHIPPED.model_copy(update={"fingerprint": fingerprint})


def test_the_profile_of_this_server_is_found_among_others() -> None:
    found, words = profile_of([other(gpu="NVIDIA L4"), SHIPPED, SHIPPED], SERVER)
    assert found is SHIPPED
    assert words == "step costs begin with the profile of NVIDIA H200"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"gpu": "NVIDIA L4"}, "gpu NVIDIA L4, here NVIDIA H200"),
        ({"model": "other"}, "model other, here llama-8b"),
        ({"engine": "vllm 0.33.0"}, "engine vllm 0.33.0, here vllm 0.32.0"),
        ({"dtype": "float16"}, "dtype float16, here bfloat16"),
        ({"parallelism": "tp2"}, "parallelism tp2, here tp1"),
        ({"gpu": "cpu", "dtype": "float32"}, "gpu cpu, here NVIDIA H200; dtype float32, here bfloat16"),
    ],
)
def test_every_part_that_differs_is_named(parts: dict[str, str], words: str) -> None:
    assert profile_of([other(**parts)], SERVER) == (None, f"no profile is of this server: {words}")


def test_another_method_is_another_server() -> None:
    found, words = profile_of([SHIPPED], SERVER.model_copy(update={"method": "eagle3"}))
    assert found is None
    assert words == "no profile is of this server: method specctl_suffix, here eagle3"


def test_what_a_server_does_not_tell_matches_nothing() -> None:
    found, words = profile_of([SHIPPED, other(model="m")], SERVER.model_copy(update={"gpu": None}))
    assert found is None
    both = "gpu NVIDIA H200, here None | gpu NVIDIA H200, here None; model m, here llama-8b"
    assert words == f"no profile is of this server: {both}"
