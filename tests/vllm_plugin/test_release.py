"""The plugin on the Python of the newest vLLM in the table: config, scheduler under a table, patches."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from specctl_vllm.patches import PATCHES
from support.checkpoints import write_model
from support.engine_sources import sources_or_skip

from specctl.engine.releases import TESTED

NUMBERS = [4, 2, 0, 3]
SCRIPT = Path(__file__).parents[1] / "support" / "vllm_release_run.py"


# Its compiled parts are another release's, or none: whatever runs here is Python.
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
def test_its_scheduler_drafts_as_the_table_says(tmp_path):
    release = TESTED["vllm"][-1]
    path = os.pathsep.join([str(sources_or_skip("vllm", release)), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(SCRIPT), str(write_model(tmp_path / "model"))]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["version"] == release
    assert report["drafts"] == NUMBERS
    assert report["accepted"] >= 2 * sum(NUMBERS)
    assert report["failures"] == {}
    assert report["patches"] == len(PATCHES)
