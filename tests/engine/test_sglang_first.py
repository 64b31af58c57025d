"""The oldest supported SGLang: it starts, is retuned, keeps its greedy output, and takes plain steps at 0."""

from itertools import cycle
from pathlib import Path

import pytest
from support.sglang_control import PROMPTS, controlled_sglang_server, greedy_while_changing

from testing import servers
from tools.setup_sglang import FIRST, FIRST_VENV

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not FIRST_VENV.is_dir(), reason="the environment is not there; make setup-sglang makes it"
    ),
]
VERSION = FIRST[0].partition("==")[2]


@pytest.fixture(scope="module")
def suffix(target_model: Path, logs: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "SGLANG_PYTHON", FIRST_VENV / "bin" / "python")
        with controlled_sglang_server(
            target_model, logs / "sglang-first.log", "SPECCTL_SUFFIX", ["--speculative-num-draft-tokens", "5"]
        ) as control:
            yield control


def test_it_is_the_oldest_release(suffix):
    assert suffix.get("capabilities")["engine_version"] == VERSION


def test_greedy_output_stays_the_same_while_the_table_changes(suffix):
    assert suffix.put(suffix.change(0)).status_code == 200
    answers = [suffix.generate(prompt) for prompt in PROMPTS]
    assert min(one["meta_info"]["spec_verify_ct"] for one in answers) == 31
    reference = [one["output_ids"] for one in answers]
    settings = cycle(((4, 1), (0, 1), (2, 1), (1, 1), (3, 1)))
    assert greedy_while_changing(suffix, 4, settings, rounds=2) == reference * 2
    assert suffix.get("telemetry")["failures"] == {}
