from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specctl.contract.classes import ClassLimit
from specctl.errors import PolicyError
from specctl.local_file import WatchedFile
from specctl.policy.loader import (
    PolicyFile,
    PolicyFiles,
    find_policy,
    load_policy,
    parse_policy,
    shipped_policies,
)
from specctl.policy.models import POLICY_ADAPTER, GoodputPolicy
from specctl.yaml_text import FILE_MAX_BYTES, dump_yaml

SHIPPED = ("balanced", "cost", "fixed", "latency", "off", "slo", "throughput")


KINDS = "goodput, slo, cost, thresholds, fixed, off"


def refused(text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p.yaml")
    return str(caught.value)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_are_valid_and_say_for_whom(name: str) -> None:
    path = find_policy(name)
    policy = load_policy(path)
    text = path.read_text()
    assert policy.name == name
    assert text.startswith("# For: ")
    assert "\n# Not for: " in text


def test_all_shipped_policies_are_tested() -> None:
    assert tuple(path.stem for path in shipped_policies()) == SHIPPED


def test_the_shipped_path_works_from_any_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_policy("policies/balanced.yaml").exists()
    with pytest.raises(PolicyError, match="shipped policies: balanced, cost, fixed"):
        find_policy("policies/balancde.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "p.yaml:1: empty"),
        ("[1]", "p.yaml:1: expected a mapping"),
        ("kind: [", "p.yaml:1: not YAML"),
        ("kind: good", f"p.yaml:1: kind: expected one of {KINDS}, got 'good'"),
        ("lease_s: 3", f"p.yaml:1: kind: expected one of {KINDS} (missing)"),
        ("kind: goodput\nleas_s: 3", "p.yaml:2: leas_s: unknown key; did you mean lease_s?"),
        ("kind: goodput\nguard_rails:\n  dwel_s: 3", "p.yaml:3: guard_rails.dwel_s: unknown key; did you"),
        ("kind: goodput\nlease_s: -4", "p.yaml:2: lease_s: Input should be greater than 0, got -4"),
        ("kind: goodput\nlease_s: .nan", "p.yaml:2: lease_s: Input should be a finite number"),
        ("kind: goodput\nlease_s: ten", "p.yaml:2: lease_s: Input should be a valid number"),
        ("kind: goodput\nlease_s: 5\nlease_s: 6", "p.yaml:3: lease_s: given twice"),
        ("kind: goodput\nlossless: false", "(allowed: boolean true)"),
        ("kind: fixed", "num_speculative_tokens: missing (allowed: integer at least 0, at most 1024)"),
        ("kind: goodput\n\nlease_s: 2", "p.yaml:3: lease_s 2 is under 3 x poll_interval_s = 3"),
        (
            "kind: goodput\nknobs: {num_speculative_tokens: {max: 4}}\nfallback_num_speculative_tokens: 8",
            "fallback_num_speculative_tokens 8 is above knobs.num_speculative_tokens.max 4",
        ),
        (
            "kind: goodput\nknobs:\n  num_speculative_tokens:\n    min: 9\n    max: 4",
            "p.yaml:4: knobs.num_speculative_tokens: min 9 is above max 4",
        ),
        ("kind: fixed\nnum_speculative_tokens: 99", "p.yaml:2: num_speculative_tokens 99 is outside"),
        ("kind: goodput\nnum_speculative_tokens_candidates: [2, 99]", "p.yaml:2: num_speculative_to"),
        ("kind: goodput\nknobs: {min_token_prob: 0.3}", "should be 'choose' or 'as_configured', got 0.3"),
        ("kind: goodput\nsampling: {share_max_ratio: 0.6}", "sampling.share_max_ratio: Input should be"),
        (
            "kind: fixed\nnum_speculative_tokens: 4\ntree_topk: 4\nknobs: {tree_topk: {max: 1}}",
            "tree_topk 4 is outside knobs.tree_topk 0 to 1",
        ),
        (
            "kind: fixed\nnum_speculative_tokens: 4\nverify_width_tokens: 9\n"
            "knobs: {verify_width_tokens: {max: 8}}",
            "verify_width_tokens 9 is outside knobs.verify_width_tokens 0 to 8",
        ),
        ("kind: off\nclasses: [{kind: code}]", "classes.0.max_num_speculative_tokens: missing"),
        (
            "kind: off\nclasses:\n- {max_num_speculative_tokens: 1, context_to_tokens: 2000}",
            "p.yaml:3: classes.0.context_to_tokens: 2000 is no bucket's upper end; the next one is 4096",
        ),
        (
            "kind: off\nclasses:\n- {kind: a, max_num_speculative_tokens: 1}\n"
            "- {kind: a, max_num_speculative_tokens: 2}",
            "p.yaml:2: classes: two rules are for the same classes",
        ),
        ("kind: off\nfrozen: !!bool maybe", "p.yaml:2: the tag tag:yaml.org,2002:bool is not allowed"),
        ('kind: off\nfrozen: !!int ""', "p.yaml:2: the tag tag:yaml.org,2002:int is not allowed"),
        ("kind: off\n\nname: !x y", "p.yaml:3: the tag !x is not allowed"),
        ("kind: &a [*a]", "p.yaml:1: anchors and aliases are not allowed"),
        ("a: &a b\nkind: *a", "p.yaml:1: anchors and aliases are not allowed"),
        ("kind: off\nclasses: *a", "p.yaml:2: anchors and aliases are not allowed"),
        ("kind: off\n? [a]\n: b", "p.yaml:2: a key must be a text"),
        ("kind: off\n" + "k" * 300 + ": 1", "p.yaml:2: a key must be a text of at most 256 characters"),
        ("kind: off\n---\nkind: off", "p.yaml:2: a second document begins here"),
        ("kind: off\nlease_s: " + "9" * 5000, "p.yaml:2: a number of 5000 characters"),
        ("kind: fixed\nnum_speculative_tokens: 0x" + "f" * 5000, "p.yaml:2: a number of 5002 characters"),
        ("kind: off\nlease_s: 1e" + "9" * 5000, "p.yaml:2: a number of 5002 characters"),
        ("kind: off\nlease_s: 1e999", "p.yaml:2: lease_s: Input should be a finite number"),
        ("kind: off\nname: '" + "9" * 5000 + "'", "p.yaml:2: name: "),
        ("kind: off\nclasses: " + "[" * 100_000, "p.yaml:2: nested deeper than 32 levels"),
        ("kind: off\nclasses: " + "{a: " * 50_000, "p.yaml:2: nested deeper than 32 levels"),
        ("kind: off\nclasses:\n" + "- " * 50_000, "p.yaml:3: nested deeper than 32 levels"),
        ("kind: [off]", f"p.yaml:1: kind: expected one of {KINDS}, got a list of 1"),
        ("kind: off\nname: \x07", "p.yaml: not YAML"),
        ("kind: slo", "kind slo needs max_tpot_ms, max_ttft_ms or max_itl_ms"),
        ("kind: cost", "price_per_gpu_hour: missing (allowed: number at least 0, at most 1e+06)"),
        ("kind: cost\nprice_per_gpu_hour: 0", "everything would be free"),
        ("kind: cost\nprice_per_gpu_hour: 1\nidle_power_w: 9", "p.yaml:3: idle_power_w and joules"),
        ("kind: cost\nprice_per_gpu_hour: 1\nenergy_price_per_kwh: 1", "needs idle_power_w or joules"),
        ("kind: off\nknobs: {num_speculative_tokens: {min: 1}}", "contradicts kind off"),
        ("kind: goodput\nexploration: {share_max_ratio: 0.001}", "p.yaml:2: exploration: unknown key"),
        (
            "kind: thresholds\nthresholds: [{decode_batch_to: 4, num_speculative_tokens: 2}]",
            "exactly the last decode_batch_to must be null",
        ),
        (
            "kind: thresholds\nthresholds:\n- {decode_batch_to: 8, num_speculative_tokens: 4}\n"
            "- {decode_batch_to: 4, num_speculative_tokens: 2}\n"
            "- {decode_batch_to: null, num_speculative_tokens: 0}",
            "decode_batch_to must rise",
        ),
    ],
)  # fmt: skip
def test_errors_name_file_line_key_and_allowed_values(text: str, words: str) -> None:
    assert words in refused(text)


def test_every_error_is_reported_at_once() -> None:
    lines = refused("kind: goodput\nlease_s: -1\nguard_rails:\n  dwell_s: -2\n  nosuch: 1\n").splitlines()
    assert sorted(line.split(": ")[0] for line in lines) == ["p.yaml:2", "p.yaml:4", "p.yaml:5"]


def test_a_bare_off_is_the_kind_off() -> None:
    assert parse_policy("kind: off", "p.yaml").kind == "off"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="No such file"):
        load_policy(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="UTF-8"):
        load_policy(tmp_path / "bytes.yaml")
    (tmp_path / "big.yaml").write_text("#" * 300_000)
    with pytest.raises(PolicyError, match="over"):
        load_policy(tmp_path / "big.yaml")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
def test_only_regular_files_are_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "p.yaml")
    with pytest.raises(PolicyError, match="expected a regular file"):
        load_policy(tmp_path / "p.yaml")


@pytest.mark.parametrize("path", ["/dev/zero", "x" * 300, "a\0b", "/dev/tty", "\x1b[2J\n"])
def test_paths_that_are_no_policy_are_refused_in_one_line(path: str) -> None:
    for read in (load_policy, find_policy):
        with pytest.raises(PolicyError) as caught:
            load_policy(find_policy(path)) if read is find_policy else load_policy(Path(path))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 600


N = FILE_MAX_BYTES
HEAVY = {
    "aliases": "a: &a ["
    + "x," * 9
    + "]\n"
    + "".join(f"b{i}: &b{i} [" + f"*b{i - 1}," * 9 + "]\n" for i in range(1, 8)),
    "values": "classes: [" + "1," * (N // 2 - 10) + "]",
    "pairs": "classes: {" + "".join(f"{i:x}," for i in range(N // 6)) + "}",
    "keys": "kind: off\n" + "".join(f"{i:x}:\n" for i in range(N // 7)),
    "rules": "kind: off\nclasses: [" + "{}," * 9_999 + "]",
    "many rules": "kind: off\nclasses: [" + "{}," * (N // 3 - 20) + "]",
    "depth": "[" * N,
    "dashes": "- " * (N // 2),
    "questions": "? " * (N // 2),
    "escapes": 'name: "' + "\\n" * (N // 2 - 10) + '"',
    "words": "name: " + "a " * (N // 2 - 10),
    "digits": "lease_s: " + "9" * (N - 10),
    "documents": "---\n" * (N // 4),
    "comments": "#\n" * (N // 2),
    "colons": ":" * N,
    "quotes": "'" * N,
    "tags": "!a " * (N // 3),
    "strings": "kind: off\nclasses: [" + "'a'," * (N // 4 - 20) + "]",
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_file_of_the_largest_size_takes_neither_time_nor_memory(name: str) -> None:
    text = HEAVY[name]
    assert len(text) <= N
    started_s = time.process_time()
    words = policy_or_refusal(text)
    assert words
    assert time.process_time() - started_s < 1.0
    assert len(words) < 64 * 1024
    tracemalloc.start()
    try:
        policy_or_refusal(text)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
NESTED = st.recursive(
    LEAVES | st.sampled_from(["fixed", "goodput"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["kind", "lease_s", "guard_rails", "sampling", "knobs", "thresholds", "name", "x"])


def policy_or_refusal(text: str) -> str:
    """Empty for a policy; any other exception than PolicyError fails the test."""
    try:
        parse_policy(text, "p.yaml")
    except PolicyError as error:
        return str(error)
    return ""


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    assert "p.yaml" in policy_or_refusal(text)


@settings(deadline=None)
@given(st.dictionaries(KEYS, NESTED))
def test_any_mapping_is_a_policy_or_a_policy_error(data: dict[str, object]) -> None:
    assert isinstance(policy_or_refusal(dump_yaml(data)), str)


def test_every_field_has_a_description() -> None:
    schema = POLICY_ADAPTER.json_schema()
    for name, model in schema["$defs"].items():
        for key, described in model["properties"].items():
            assert key == "kind" or described.get("description"), f"{name}.{key}"
    assert json.dumps(schema)


def test_a_shown_policy_is_the_same_policy() -> None:
    policy = load_policy(find_policy("latency"))
    again = parse_policy(dump_yaml(policy.model_dump(mode="json")), "p.yaml")
    assert again == policy
    assert isinstance(again, GoodputPolicy)


def test_a_policy_that_becomes_invalid_on_disk_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("kind: fixed\nnum_speculative_tokens: 3\n")
    source = PolicyFile(path)
    path.write_text("kind: fixed\nnum_speculative_tokens: many\n")
    assert not asyncio.run(source.refresh())
    assert not asyncio.run(source.refresh())
    assert source.policy == parse_policy("kind: fixed\nnum_speculative_tokens: 3", "p")
    assert "many" in (source.refusal or "")
    assert caplog.text.count("policy refused") == 1
    path.write_text("kind: fixed\nnum_speculative_tokens: 55555\n")
    assert not asyncio.run(source.refresh())
    path.unlink()
    assert not asyncio.run(source.refresh())
    path.write_text("kind: 'off'\n")
    assert asyncio.run(source.refresh())
    assert (source.policy.kind, source.refusal) == ("off", None)


@pytest.mark.parametrize(
    "content", [b"frozen: !!bool maybe", b"kind: &a [*a]", b"\xff", b"[" * 9999, b"", None]
)
def test_the_last_good_policy_stays_for_any_bytes(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("kind: fixed\nnum_speculative_tokens: 3\n")
    files = PolicyFiles()
    source = files.get(path)
    path.unlink()
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    asyncio.run(files.refresh())
    assert source.policy == parse_policy("kind: fixed\nnum_speculative_tokens: 3", "p")
    assert not files.is_valid
    path.unlink()
    path.write_text("kind: off\n")
    asyncio.run(files.refresh())
    assert source.policy.kind == "off"
    assert files.is_valid


def test_a_bug_in_reading_a_file_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("1")

    def load(path: Path) -> int:
        return 10 // int(path.read_text())

    file = WatchedFile(path, load, "policy")
    path.write_text("0 ")
    assert not asyncio.run(file.refresh())
    assert (file.value, file.refusal) == (10, f"{path}: cannot be used (ZeroDivisionError)")
    assert caplog.text.count("Traceback") == 1


def test_a_file_that_could_not_be_opened_is_read_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("kind: 'off'\n")
    files = PolicyFiles()
    source = files.get(path)
    path.write_text("kind: goodput\nfrozen: true\n")

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        for _ in range(3):
            asyncio.run(files.refresh())
    assert (source.refusal, source.policy.frozen) == (f"{path}: Too many open files", False)
    assert caplog.text.count("the last good one stays") == 1
    asyncio.run(files.refresh())
    assert (source.refusal, source.policy.frozen) == (None, True)


def test_a_machine_without_threads_left_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("kind: 'off'\n")
    files = PolicyFiles()
    files.get(path)
    path.write_text("kind: fixed\nnum_speculative_tokens: 3\n")

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        asyncio.run(files.refresh())
        asyncio.run(files.refresh())
    assert caplog.text.count("can't start new thread") == 1
    assert files.get(path).policy.kind == "off"
    asyncio.run(files.refresh())
    assert files.get(path).policy.kind == "fixed"


def test_rules_for_classes() -> None:
    text = """
kind: goodput
classes:
- {kind: chat, context_to_tokens: 1024, max_num_speculative_tokens: 0}
- {namespace: adapter=sql*, max_num_speculative_tokens: 3}
"""
    assert parse_policy(text, "p.yaml").classes == (
        ClassLimit(kind="chat", context_to_tokens=1024, max_num_speculative_tokens=0),
        ClassLimit(namespace="adapter=sql*", max_num_speculative_tokens=3),
    )
