"""One daemon, two real servers in one group: vLLM with ngram and SGLang with NGRAM."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.daemon_beside import (
    assert_daemon_is_harmless,
    decision_reasons,
    run_daemon,
    setting_at,
    traffic,
    wait_for_polls,
    write_policy,
)
from support.engine_control import PROMPTS, controlled_server, wait_for
from support.sglang_control import NEEDS_SGLANG, controlled_sglang_server

from testing.autotune import autotune
from testing.servers import free_port

pytestmark = NEEDS_SGLANG
ARGUMENTS = ["--speculative-num-draft-tokens", "5"]
LITTLE_TO_COPY = PROMPTS[1:3]
DRAFTS = 3
VLLM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
    "specctl": {},
}
ROLLOUT = {"canary_s": 8.0, "canary_loss_max_ratio": 0.3, "pause_s": 8.0}


@contextmanager
def started_on(cores: list[int]):
    """What starts within has these cores to itself: vLLM's processes spin while they wait, and a server that
    shares their cores can be without an answer for 20 s."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.fixture(scope="module")
def servers(shared_models: Path, logs: Path):
    """By their addresses, each with half of the cores."""
    target, cores = shared_models / "reference-target", sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    vllm = controlled_server(target, logs / "group-vllm.log", VLLM)
    sglang = controlled_sglang_server(
        target, logs / "group-sglang.log", "NGRAM", ARGUMENTS, {"SPECCTL_SGLANG_OPTIONS": "{}"}
    )
    with ExitStack() as stack:
        found = []
        for server, own in ((vllm, cores[:half]), (sglang, cores[half:])):
            with started_on(own):
                found.append(stack.enter_context(server))
        yield {one.server.url: one for one in found}


@pytest.fixture
def references(servers):
    """Greedy outputs without drafts."""
    for control in servers.values():
        assert control.put(control.change(0)).status_code == 200
    return {url: [control.complete(prompt) for prompt in PROMPTS] for url, control in servers.items()}


@pytest.mark.parametrize("number", [0, 1], ids=["vLLM", "SGLang"])
def test_the_daemon_beside_each(servers, references, tmp_path, number):
    url, control = list(servers.items())[number]
    assert_daemon_is_harmless(run_daemon(control, tmp_path, PROMPTS), references[url])


@contextmanager
def slowed(process):
    """The server runs an eighth of the time (drafts double its speed), and answers the daemon soon enough."""
    done = threading.Event()

    def halt():
        while not done.is_set():
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(0.7)
            os.killpg(process.pid, signal.SIGCONT)
            done.wait(0.1)

    thread = threading.Thread(target=halt)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Daemon:
    """As it runs, with the files that it reads and writes."""

    def __init__(self, folder, policy, port):
        self.folder, self.policy, self.port = folder, policy, port

    def records(self, event):
        text = (self.folder / "audit.jsonl").read_text(encoding="utf-8")
        return [one for one in map(json.loads, text.splitlines()) if one["event"] == event]

    def freeze(self, word):
        command = [str(Path(sys.executable).parent / "specctl"), word, str(self.policy)]
        daemon = ["--daemon", f"http://127.0.0.1:{self.port}"]
        done = subprocess.run([*command, *daemon], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def edit(self, drafts):
        text = self.policy.read_text(encoding="utf-8")
        written = self.policy.with_suffix(".new")
        key = "num_speculative_tokens"
        written.write_text(re.sub(rf"^{key}: .*$", f"{key}: {drafts}", text, flags=re.MULTILINE))
        written.replace(self.policy)


def numbers(servers):
    """Of the batch of one request, which is all the traffic that there is."""
    return {url: setting_at(one.get("table"), 1)["num_speculative_tokens"] for url, one in servers.items()}


def test_a_change_goes_to_one_server_first_and_back_where_it_is_slower(servers, references, tmp_path):
    """A trial that fails, one that passes, a freeze; and the start tables once the daemon has stopped."""
    port, by_url = free_port(), list(servers)
    policy = write_policy(
        tmp_path, kind="fixed", num_speculative_tokens=DRAFTS, rollout=ROLLOUT, lease_s=30.0
    )
    outputs, daemon = defaultdict(list), Daemon(tmp_path, policy, port)
    more = ["--metrics-port", str(port), "--target", by_url[1]]
    with (
        autotune(by_url[0], tmp_path, policy=str(policy), more=more) as process,
        ExitStack() as requests,
    ):
        wait_for_polls(tmp_path, 2)
        for url, control in servers.items():
            outputs[url] = requests.enter_context(traffic(control.complete, LITTLE_TO_COPY, 1))
        failed = assert_goes_back(servers, daemon)
        assert_follow(servers, daemon, failed)
        assert_frozen(servers, daemon)
        reasons = decision_reasons(port)
        assert {"set_by_policy", "canary_wait", "rollback", "frozen"} <= set(reasons), reasons
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    for url, control in servers.items():
        table = control.get("table")
        assert (table["rows"], table["lease_s"]) == (table["start_rows"], None)
        for number, found in outputs[url].items():
            expected = references[url][PROMPTS.index(LITTLE_TO_COPY[number])]
            assert all(output == expected for output in found)
    log = (tmp_path / "autotune.log").read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log


def assert_goes_back(servers, daemon):
    """The canary is slowed down during its trial. Returns its address."""
    wait_for(lambda: daemon.records("change"), 60)
    first = daemon.records("change")[0]["target"]
    assert [one["target"] for one in daemon.records("canary")] == [first]
    with slowed(servers[first].server.process):
        wait_for(lambda: daemon.records("rollback"), 60)
    assert {one["target"] for one in daemon.records("change")} == {first}
    [record] = daemon.records("rollback")
    assert record["target"] == first
    assert "of the tokens per second of a request before it" in record["why"]
    wait_for(lambda: numbers(servers) == dict.fromkeys(servers, 0))

    def back():
        return [one for one in daemon.records("change") if one["reason"] == "rollback"]

    wait_for(back)
    assert back()[0]["target"] == first
    assert {knob for moved in back()[0]["moved"].values() for knob in moved} == {"num_speculative_tokens"}
    return first


def assert_follow(servers, daemon, failed):
    """After the pause: one first again, and then the other one."""
    wait_for(lambda: daemon.records("canary_passed"), 90)
    passed = daemon.records("canary_passed")[0]["target"]
    wait_for(lambda: numbers(servers) == dict.fromkeys(servers, DRAFTS), 30)
    changes = [one["target"] for one in daemon.records("change") if one["reason"] == "set_by_policy"]
    assert changes[0] == failed
    [other] = [url for url in servers if url != passed]
    assert changes.index(passed, 1) < len(changes) - 1 - changes[::-1].index(other)


def assert_frozen(servers, daemon):
    """Leases are renewed and nothing else; the policy that came meanwhile holds after the thaw."""
    daemon.freeze("freeze")
    before = {url: one.get("table") for url, one in servers.items()}
    daemon.edit(1)
    lasts_s = time.monotonic() + 3
    wait_for(
        lambda: all(one.get("table")["version"] > before[url]["version"] for url, one in servers.items()), 40
    )
    time.sleep(max(lasts_s - time.monotonic(), 0))
    for url, control in servers.items():
        after = control.get("table")
        assert (after["rows"], after["state"]) == (before[url]["rows"], "live")
        assert after["reason"].startswith("frozen")
    assert {one["target"] for one in daemon.records("frozen")} == set(servers)
    daemon.freeze("thaw")
    wait_for(lambda: numbers(servers) == dict.fromkeys(servers, 1), 30)
    assert {one["target"] for one in daemon.records("thawed")} == set(servers)
