"""``specctl doctor`` finds what was planted on a real server, in its daemons and in its launch command. Other
mistakes are planted where a server for them runs anyway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.daemon_beside import wait_for_polls, write_policy
from support.doctor_codes import doctor_codes, doctor_codes_of_launch
from support.engine_control import Control, controlled_server, wait_for

from testing.autotune import autotune
from testing.servers import free_port, vllm_server

pytestmark = pytest.mark.engine

PROMPT = "Once upon a time there was a"


@pytest.fixture(scope="module")
def random_head(tiny_mtp: Path, logs: Path) -> Iterator[Control]:
    """A head of random weights in a model of random weights: its drafts are luck. Its metrics are off."""
    config = {"method": "mtp", "num_speculative_tokens": 3, "specctl": {}}
    arguments = ["--load-format", "dummy", "--disable-log-stats"]
    with controlled_server(tiny_mtp, logs / "random-head.log", config, arguments=arguments) as control:
        yield control


def test_metrics_that_are_off_and_daemons_that_are_in_each_others_way(
    random_head: Control, tmp_path: Path
) -> None:
    url = random_head.server.url
    assert doctor_codes(url) == {"metrics-off"}
    by_another_name = url.replace("127.0.0.1", "localhost")
    with ExitStack() as daemons:
        ports = {}
        for name, target in (("first", by_another_name), ("second", url)):
            folder = tmp_path / name
            folder.mkdir()
            ports[name] = free_port()
            more = ["--metrics-port", str(ports[name])]
            policy = write_policy(folder)
            daemons.enter_context(autotune(target, folder, policy=str(policy), more=more))
            wait_for_polls(folder, 1)
            random_head.complete(PROMPT)

        def found(name: str) -> set[str]:
            return doctor_codes(url, "--daemon", f"http://127.0.0.1:{ports[name]}") - {"metrics-off"}

        assert found("first") == {"daemon-elsewhere"}
        wait_for(lambda: found("second") == {"two-daemons"})
        (tmp_path / "second" / "policy.yaml").write_text("kind: goodputt\n")
        wait_for(lambda: found("second") == {"two-daemons", "policy-refused"})
    assert found("second") == {"daemon-unreachable"}


def test_a_head_that_is_never_right_makes_the_server_slower(random_head: Control) -> None:
    sample = {"setting": {"num_speculative_tokens": 0}, "every_steps": 2}
    row = {"decode_batch_from": 1, "num_speculative_tokens": 3, "sample": sample}
    assert random_head.put(random_head.change(3, rows=[row])).status_code == 200
    random_head.complete(PROMPT, 200)
    found = doctor_codes(random_head.server.url) - {"metrics-off"}
    assert found == {"acceptance-near-zero", "slower-than-off"}


def test_a_head_of_another_model_is_found_before_the_start(
    tiny_mtp: Path, shared_models: Path, logs: Path
) -> None:
    config = {"method": "eagle3", "model": str(shared_models / "reference-eagle3"), "specctl": {}}
    config |= {"num_speculative_tokens": 2}
    command = ["vllm", "serve", str(tiny_mtp), "--speculative-config", json.dumps(config)]
    assert "draft-hidden-size" in doctor_codes_of_launch(*command)
    server = vllm_server(tiny_mtp, logs / "foreign-head.log", config, ["--load-format", "dummy"])
    with pytest.raises(RuntimeError):
        server.__enter__()


def test_a_list_of_plugins_without_specctl_is_found_before_the_start(
    target_model: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"method": "specctl_suffix"}
    command = ["vllm", "serve", str(target_model), "--speculative-config", json.dumps(config)]
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    assert doctor_codes_of_launch(*command) == {"plugin-not-allowed"}
    server = vllm_server(target_model, logs / "not-allowed.log", config)
    with pytest.raises(RuntimeError, match="specctl_suffix"):
        server.__enter__()
