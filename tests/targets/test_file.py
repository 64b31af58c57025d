from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from specctl.errors import PolicyError, TargetsError
from specctl.policy.loader import find_policy, load_policy
from specctl.targets.file import TargetsFile, parse_targets


def find(name: str, folder: Path) -> Path:
    if name == "nosuch":
        raise PolicyError("nosuch: no such file")
    return folder / name


GOOD = """
policies:
  - match: {tier: interactive}
    policy: latency.yaml
  - match: {}
    policy: off
targets:
  - url: h1:8000
    labels: {tier: interactive}
  - url: http://h2:8000
  - dns: vllm.default.svc:8000
  - kubernetes: {namespace: serving, selector: app=vllm, port: http}
    labels: {tier: batch}
    interval_s: 30
"""


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "targets.yaml"
    path.write_text(GOOD)
    file = TargetsFile(path, find)
    assert [rule.policy.name for rule in file.value.rules] == ["latency.yaml", "off"]
    assert [rule.group for rule in file.value.rules] == ["tier=interactive latency", "all off"]
    fixed, dns, pods = file.value.sources
    first, second = asyncio.run(fixed.read())
    assert first.url == "http://h1:8000"
    assert file.value.rules[0].matches(first)
    assert not file.value.rules[0].matches(second)
    assert file.value.rules[1].matches(second)
    assert (dns.interval_s, pods.interval_s) == (10.0, 30.0)
    assert dns.name.startswith("dns vllm.default.svc:8000")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("- a", "expected a mapping"),
        ("targets: [}", "not YAML"),
        ("policies: []", "t:1: targets: missing"),
        (
            "targets: []\npolices: []",
            "polices: unknown key; did you mean policies? Allowed here: frozen, policies",
        ),
        (
            "targets:\n  - url: a:1\n    lables: {}",
            "t:3: targets.0.lables: unknown key; did you mean labels? Allowed",
        ),
        ("targets:\n  - url: a:1\n    dns: b:2", "expected one of url, dns, kubernetes; got url and dns"),
        ("targets:\n  - labels: {}", "expected one of url, dns, kubernetes; got none"),
        ("targets:\n  - dns: nameonly", "t:2: targets.0.dns:"),
        ("targets:\n  - dns: name:99999", "outside 1 to 65535"),
        ("targets:\n  - url: a:1\n    labels: {n: 3}", "targets.0.labels.n: Input should be a valid string"),
        (
            "targets:\n  - kubernetes: {namespace: a, selector: b, port: 1, name: x}",
            "Allowed here: api, ",
        ),
        ("targets:\n  - kubernetes: {namespace: a, selector: b}", "targets.0.kubernetes.port: missing"),
        ("targets:\n  - kubernetes: {namespace: ../../x, selector: b, port: 1}", "namespace"),
        ("targets: []\npolicies:\n  - {match: {a: b}}", "policies.0.policy: missing"),
        ("targets: []\ntargets: []", "t:2: targets: given twice"),
        ('targets: []\nfrozen: !!int ""', "t:2: the tag tag:yaml.org,2002:int is not allowed"),
        ("targets: []\nfrozen: !!bool maybe", "t:2: the tag tag:yaml.org,2002:bool is not allowed"),
        ("targets: &a [*a]", "t:1: anchors and aliases are not allowed"),
        (
            "targets: []\npolicies: [{match: {}, policy: " + "x" * 5000 + "}]",
            "t:2: policies.0.policy: String",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(TargetsError) as caught:
        parse_targets(text, "t")
    assert words in str(caught.value)


def test_a_wrong_url_and_a_wrong_policy_are_named_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "targets.yaml"
    path.write_text("targets:\n  - url: a:1\n  - url: ftp://x\n")
    with pytest.raises(TargetsError, match=r"targets.yaml:3: targets.1.url: ftp://x: expected http://"):
        TargetsFile(path, find)
    path.write_text("targets: []\npolicies:\n  - match: {}\n    policy: nosuch\n")
    with pytest.raises(PolicyError, match=r"targets.yaml:4: policies.0.policy: nosuch"):
        TargetsFile(path, find)
    with pytest.raises(TargetsError, match="No such file"):
        TargetsFile(tmp_path / "none.yaml", find)


def test_a_policy_name_that_no_file_can_have_is_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "targets.yaml"
    path.write_text(f"targets: []\npolicies:\n  - match: {{}}\n    policy: {'x' * 300}\n")

    def exists(name: str, folder: Path) -> Path:
        (folder / name).exists()
        return find(name, folder)

    with pytest.raises(PolicyError, match=r"targets.yaml:4: policies.0.policy: .*File name too long"):
        TargetsFile(path, exists)
    with pytest.raises(PolicyError, match=r"policies.0.policy: x+\.*: no such file; shipped"):
        TargetsFile(path, lambda name, folder: find_policy(name))


def test_a_policy_that_comes_or_is_mended_after_the_file_that_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two files of one change are written one after the other."""
    path, policy = tmp_path / "targets.yaml", tmp_path / "new.yaml"

    def checked(name: str, folder: Path) -> Path:
        load_policy(folder / name)
        return folder / name

    path.write_text("targets:\n  - url: a:1\n")
    file = TargetsFile(path, checked)
    path.write_text("targets:\n  - url: a:1\npolicies:\n  - match: {}\n    policy: new.yaml\n")
    for content in (None, "kind: of\n", "kind: off\n"):
        if content is not None:
            policy.write_text(content)
        is_taken = [asyncio.run(file.refresh()) for _ in range(2)]
        assert is_taken == [content == "kind: off\n", False]
    assert file.refusal is None
    assert [rule.policy for rule in file.value.rules] == [policy]
    assert caplog.text.count("the last good one stays") == 2


def test_a_file_is_read_beside_the_event_loop(tmp_path: Path) -> None:
    """A FIFO in its place is refused at once; a disk that hangs holds nobody up."""
    path = tmp_path / "targets.yaml"
    path.write_text("targets:\n  - url: a:1\n")
    hangs = threading.Event()

    class Slow(TargetsFile):
        def _read(self) -> Any:
            hangs.wait(10)
            return super()._read()

    async def course() -> None:
        file = Slow(path, find)
        before = file.value.sources
        path.write_text("targets:\n  - url: b:1\n")
        started_s = time.perf_counter()
        assert not await file.refresh()
        assert not await file.refresh()
        assert time.perf_counter() - started_s < 5
        assert file.value.sources is before
        hangs.set()
        assert await file.refresh()
        path.unlink()
        os.mkfifo(path)
        assert not await file.refresh()
        assert "expected a regular file" in (file.refusal or "")
        assert len(file.value.sources) == 1

    asyncio.run(course())


def test_a_wrong_change_keeps_the_last_good_one_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="specctl")
    path = tmp_path / "targets.yaml"
    path.write_text("targets:\n  - url: a:1\n")
    file = TargetsFile(path, find)
    before = file.value.sources
    assert not asyncio.run(file.refresh())
    path.write_text("targets:\n  - ulr: a:1\n")
    for _ in range(3):
        assert not asyncio.run(file.refresh())
    assert file.value.sources is before
    assert "unknown key" in (file.refusal or "")
    assert caplog.text.count("the last good one stays") == 1
    path.write_text("targets:\n  - url: a:1\n  - url: b:1\n")
    assert asyncio.run(file.refresh())
    assert file.refusal is None
    os.remove(path)
    assert not asyncio.run(file.refresh())
    assert "No such file" in (file.refusal or "")
    assert len(asyncio.run(file.value.sources[0].read())) == 2
