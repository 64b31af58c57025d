"""What is put in force in the installed SGLang, and what is not: unasked, twice, after another plugin."""

from specctl_sglang.patches import PATCHES
from support.sglang_control import NEEDS_SGLANG, ran_by_sglang

pytestmark = NEEDS_SGLANG


def test_patches_are_put_in_force_where_they_are_asked_for(tmp_path):
    found = ran_by_sglang("sglang_hooks.py", {}, tmp_path / "out")
    assert found["unasked"] == []
    assert found["after another's patch"] == [], "stock behaviour"
    assert set(found["asked"]) == {
        patch.target for patch in PATCHES if patch.process in ("engine", "worker") and not patch.methods
    } | {patch.target for patch in PATCHES if patch.methods & {"cpu stand-ins"}} | {
        "sglang.srt.speculative.ngram_worker:NgramCorpus",
        "sglang.srt.speculative.ngram_worker:move_accept_tokens_to_target_kvcache",
    }
    assert set(found["hooks"]) == {1}, "loaded twice, wrapped once"
    assert found["why not"] is None
    assert found["replaced"].endswith("Scheduler.run_batch is replaced by another plugin")
