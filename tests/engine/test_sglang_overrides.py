"""Every override of ours takes what the installed SGLang passes to the method that it stands for."""

from support.sglang_control import NEEDS_SGLANG, ran_by_sglang

pytestmark = NEEDS_SGLANG


def test_overrides_take_every_argument_of_the_methods_they_replace(tmp_path):
    found = ran_by_sglang("sglang_overrides.py", {}, tmp_path / "out")
    assert found["problems"] == []
    assert {
        "PEagleDrafter._draft_extend_for_prefill",
        "PEagleDrafter._draft_extend_for_decode",
        "HostRelayMap.resolve_seq_lens_cpu",
        "SuffixWorker.forward_batch_generation",
        "SteeredEagle.forward_batch_generation",
    } <= set(found["compared"])
