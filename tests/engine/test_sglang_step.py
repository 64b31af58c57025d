"""How many torch operations a step of SPECCTL_SUFFIX takes beside the target's forward pass.

Real workers without an engine (benchmarks.sglang_step_host), where a step that is not prepared for the tokens
that came before it ends the run.
"""

import json
import os
import subprocess

import pytest

from testing.provenance import ROOT
from testing.servers import KEEP_BYTECODE, SGLANG_PYTHON

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not SGLANG_PYTHON.is_file(), reason="SGLang's environment is not there"),
]
# The copy of what a verification reads, its mask included; the slots of the KV cache, and those as int64; and
# SGLang's own accept_lens.
BEFORE_MOST = 4
AFTER_MOST = 7


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    file = tmp_path_factory.mktemp("step") / "step.json"
    command = ["-m", "benchmarks.sglang_step_host", "--requests", "1", "5", "--rounds", "1"]
    done = subprocess.run(
        [str(SGLANG_PYTHON), *command, "--output", str(file)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, **KEEP_BYTECODE},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())["by requests"]


@pytest.mark.parametrize("requests", ["1", "5"])
def test_a_step_takes_as_many_operations_for_any_number_of_requests(figures, requests):
    ours = figures[requests]["SPECCTL_SUFFIX"]
    assert ours["torch operations"]["before the forward"] <= BEFORE_MOST
    assert ours["torch operations"]["after it"] <= AFTER_MOST
    assert ours["tokens a step"] > 2


@pytest.mark.parametrize("requests", ["1", "5"])
def test_and_fewer_than_stock_ngrams(figures, requests):
    stock, ours = (figures[requests][arm]["torch operations"] for arm in ("stock NGRAM", "SPECCTL_SUFFIX"))
    assert ours["before the forward"] < stock["before the forward"]
    assert ours["after it"] <= stock["after it"]
