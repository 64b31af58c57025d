"""specctl_suffix on a real vLLM: one server, from the table to the daemon."""

import asyncio
import json
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.daemon_beside import assert_daemon_is_harmless, run_daemon, setting_at, traffic
from support.documented_commands import documented_on_a_server, run
from support.engine_control import LISTING, assert_refused, wait_for
from support.engine_control import PROMPTS as FIRST_PROMPTS
from support.engine_metrics import assert_metrics_hold_the_plugins
from support.recorded_profile import recorded_and_simulated, specctl
from support.request_features import (
    VLLM_REQUESTS,
    assert_aborts_leave_others_alone,
    assert_chunks_change_nothing,
    assert_prefixes_are_found,
    assert_same_for_every_number,
)
from support.sampled_steps import assert_chains_are_sampled
from support.scored_outputs import assert_differences_are_scored

from specctl.draft.corpus_file import fingerprint_of, load
from specctl.draft.frozen_corpus import documents_of
from testing.autotune import autotune
from testing.lossless import compare
from testing.servers import free_port

pytestmark = pytest.mark.engine

PROMPTS = [
    *FIRST_PROMPTS,
    "Once upon a time, in a small town by the sea,",
    '{"name": "x", "value": 1}\n{"name": "y", "value": 2}\n{"name":',
]
SAMPLED_PROMPT = "The weather today is"
LONG = 60
"""Tokens of context from which on another row holds."""


def sampled(tokens, every_steps):
    sample = {"setting": {"num_speculative_tokens": tokens}, "every_steps": every_steps}
    return {"decode_batch_from": 1, "num_speculative_tokens": 4, "sample": sample}


@pytest.fixture(scope="module")
def reference(suffix):
    """Greedy output of the same server without speculation."""
    assert suffix.put(suffix.change(0)).status_code == 200
    return [suffix.complete(prompt) for prompt in PROMPTS]


def test_capabilities(suffix):
    capabilities = suffix.get("capabilities")
    assert capabilities["method"] == "specctl_suffix"
    assert capabilities["controllable"]
    assert capabilities["num_speculative_tokens_legal"] == list(range(9))
    assert capabilities["decode_batch_max"] == 8
    assert capabilities["has_shadow_acceptance"]


def test_an_idle_server_has_handed_everything_on(suffix):
    suffix.complete(PROMPTS[0])
    assert suffix.get("telemetry")["front_end_waiting_pieces"] == 0


@pytest.mark.parametrize("concurrency", [1, 4, 8])
def test_greedy_output_is_the_same_while_the_table_changes(suffix, reference, concurrency):
    prompts = PROMPTS * 3

    async def run():
        async with httpx.AsyncClient(base_url=suffix.server.url, timeout=300) as client:
            return await compare(
                client, "model", prompts, reference * 3,
                max_tokens=32, concurrency=concurrency, every_s=0.1,
            )  # fmt: skip

    result = asyncio.run(run())
    assert result.differing == ()
    assert result.tables >= 9


def test_tokens_are_verified_by_their_chances(suffix, reference):
    def drafted(least):
        row = {"decode_batch_from": 1, "num_speculative_tokens": 8, "min_token_prob": least}
        assert suffix.put(suffix.change(8, rows=[row])).status_code == 200
        assert suffix.get("table")["rows"][0]["min_token_prob"] == least
        before = sum(sum(cell["drafted_at"]) for cell in suffix.get("telemetry")["cells"])
        assert [suffix.complete(prompt) for prompt in PROMPTS] == reference
        return sum(sum(cell["drafted_at"]) for cell in suffix.get("telemetry")["cells"]) - before

    assert suffix.get("capabilities")["min_token_prob"] == 0.1
    usual, few = drafted(None), drafted(0.9)
    assert usual > few > 0


def test_outputs_that_part_are_scored(suffix, target_model):
    assert_differences_are_scored(suffix.server.url, target_model)


@pytest.mark.parametrize("asked", VLLM_REQUESTS)
def test_what_a_request_asks_for_holds_at_every_number(suffix, reference, asked):
    assert_same_for_every_number(suffix, VLLM_REQUESTS[asked], PROMPTS, reference, 8, 3, 1)


@pytest.mark.parametrize("asked", [{"min_p": 0.1}, {"logit_bias": {"5": 10}}], ids=["min_p", "logit_bias"])
def test_vllm_refuses_with_drafts(suffix, asked):
    body = {"model": "model", "prompt": "x", "max_tokens": 2, **asked}
    answer = suffix.client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "not yet supported with speculative decoding" in answer.text


def test_aborts_while_the_table_changes(suffix, reference):
    assert_aborts_leave_others_alone(suffix, PROMPTS, reference)


@pytest.mark.parametrize("number", [8, 0])
def test_a_prompt_in_chunks_at_every_number(suffix, number):
    assert_chunks_change_nothing(suffix, 2048, PROMPTS, number)


def test_off_costs_no_prefix_hits(suffix):
    assert_prefixes_are_found(suffix, "vllm:prefix_cache_hits_total", "A list. " + LISTING * 12)


def test_a_put_takes_effect_within_one_step(suffix):
    assert suffix.put(suffix.change(0)).status_code == 200
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(suffix.complete, PROMPTS[0], 160)
        wait_for(lambda: suffix.get("telemetry")["decoding"] == 1)
        for tokens in (8, 3, 0, 5):
            assert suffix.put(suffix.change(tokens)).status_code == 200
            before = steps_of_others(suffix, tokens)
            wait_for(lambda tokens=tokens: suffix.get("telemetry")["num_speculative_tokens"] == tokens)
            assert steps_of_others(suffix, tokens) - before <= 1
        running.result()


def test_copying_drafts_are_accepted_and_counted(suffix):
    assert suffix.put(suffix.change(8)).status_code == 200
    before = suffix.get("telemetry")
    suffix.complete(LISTING * 3 + "item_0", 64)
    after = suffix.get("telemetry")

    def total(telemetry, key):
        return sum(
            sum(cell[key]) if isinstance(cell[key], list) else cell[key] for cell in telemetry["cells"]
        )

    emitted = total(after, "emitted_tokens") - total(before, "emitted_tokens")
    steps = total(after, "request_steps") - total(before, "request_steps")
    accepted = total(after, "accepted_at") - total(before, "accepted_at")
    assert emitted == 63
    assert steps < 40
    assert accepted >= emitted - steps
    assert after["shadow"]["drafts"] > before["shadow"]["drafts"]
    assert after["proposer"]["corpus_tokens"] > 0


def test_the_engines_own_metrics_hold_the_plugins(suffix):
    assert suffix.put(suffix.change(8)).status_code == 200
    suffix.complete(LISTING * 3 + "item_0", 32)
    wait_for(lambda: not suffix.get("telemetry")["decoding"])
    assert_metrics_hold_the_plugins(suffix, 8, "vllm:num_requests_running")


def said(**field):
    return {"specctl": json.dumps(field)}


def test_a_request_bounds_its_own_drafts(suffix, reference):
    """Its output is the same; another request beside it drafts as the table says."""
    assert suffix.put(suffix.change(8)).status_code == 200

    def most_drafted(**field):
        before = positions(suffix)
        assert suffix.complete(PROMPTS[0], 32, vllm_xargs=said(**field)) == reference[0]
        wait_for(lambda: not suffix.get("telemetry")["decoding"])
        return sum(now > then for now, then in zip(positions(suffix), before, strict=True))

    assert [most_drafted(max_draft_tokens=tokens) for tokens in (0, 2, 1024)] == [0, 2, 8]
    before = positions(suffix)
    with ThreadPoolExecutor(2) as pool:
        bound = pool.submit(suffix.complete, PROMPTS[0], 32, vllm_xargs=said(max_draft_tokens=1))
        free = pool.submit(suffix.complete, PROMPTS[0], 32)
        assert bound.result() == free.result() == reference[0]
    wait_for(lambda: not suffix.get("telemetry")["decoding"])
    assert positions(suffix)[7] > before[7]


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ('{"max_draft_tokens": -1}', "specctl: max_draft_tokens"),
        ('{"max_drafts": 1}', "specctl: max_drafts"),
        ('{"kind": "Not This"}', "specctl: kind"),
        ('{"share": "no"}', "specctl: share"),
        ("code", "specctl: "),
        (3, "specctl: expected an object"),
        ([1, 2], "specctl: expected an object"),
        ("{" * 500, "specctl: "),
    ],
)
def test_nonsense_in_the_field_is_refused_for_that_request_alone(suffix, reference, field, named):
    body = {"model": "model", "prompt": PROMPTS[0], "max_tokens": 32, "vllm_xargs": {"specctl": field}}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(suffix.complete, PROMPTS[1])
        for stream in (False, True):
            answer = suffix.client.post("/v1/completions", json={**body, "stream": stream})
            assert answer.status_code == 400
            assert named in answer.json()["error"]["message"]
        assert running.result() == reference[1]
    assert not suffix.get("telemetry")["failures"]


def test_a_class_drafts_no_more_than_its_limit(suffix, reference):
    """The same request under another kind still drafts, and its output is the same either way."""
    limits = [
        {"kind": "plain", "max_num_speculative_tokens": 0},
        {"kind": "few", "max_num_speculative_tokens": 2},
    ]
    answer = suffix.put(suffix.change(8, class_limits=limits))
    assert answer.status_code == 200
    assert [one["kind"] for one in suffix.get("table")["class_limits"]] == ["plain", "few"]

    def most_drafted(kind):
        before = positions(suffix)
        assert suffix.complete(PROMPTS[0], 32, vllm_xargs=said(kind=kind)) == reference[0]
        wait_for(lambda: not suffix.get("telemetry")["decoding"])
        return sum(now > then for now, then in zip(positions(suffix), before, strict=True))

    assert most_drafted("plain") == 0
    assert most_drafted("few") == 2
    assert most_drafted("code") == 8
    refused = suffix.put(suffix.change(8, class_limits=[*limits, limits[0]]))
    assert refused.status_code == 422
    assert refused.json()["refusals"][0]["field"] == "class_limits[2]"


def positions(suffix):
    """Drafted tokens by position, over all cells."""
    cells = suffix.get("telemetry")["cells"]
    return [sum(cell["drafted_at"][j] for cell in cells) for j in range(8)]


def test_a_grammar_is_kept_with_drafts(suffix):
    """Drafts that it forbids are cut before they are verified."""
    grammar = {"structured_outputs": {"regex": r"(item_[0-9] = load\('[a-z]'\)\n){2,6}"}}
    answers = []
    for tokens in (0, 8):
        assert suffix.put(suffix.change(tokens)).status_code == 200
        before = positions(suffix)
        answers.append(suffix.complete(LISTING * 2 + "item_0", 40, **grammar))
    assert answers[0] == answers[1]
    wait_for(lambda: not suffix.get("telemetry")["decoding"])
    assert positions(suffix)[0] > before[0]


def test_requests_are_counted_by_their_kind(suffix):
    assert suffix.put(suffix.change(8)).status_code == 200
    suffix.complete(LISTING * 2 + "item_0", 32, vllm_xargs=said(kind="code"))
    for more in (
        {},
        {"temperature": 0.7},
        {"structured_outputs": {"regex": "[a-z ]{20,60}"}},
        {"cache_salt": "tenant"},
    ):
        suffix.complete("Once upon a time", 16, ignore_eos=True, **more)
    classes = suffix.get("telemetry")["classes"]
    keys = {(one["namespace"][:5], one["kind"], one["context_to_tokens"]) for one in classes}
    assert {("", kind, 1024) for kind in ("code", "greedy", "sampled", "structured")} <= keys
    assert ("salt=", "greedy", 1024) in keys
    assert "tenant" not in json.dumps(classes)
    code = next(one for one in classes if one["kind"] == "code")
    assert 0 < code["accepted_at"][0] <= code["drafted_at"][0] <= code["request_steps"]
    assert not any(one["decoding"] for one in classes)


def test_the_shadow_tells_acceptance_while_speculation_is_off(suffix):
    assert suffix.put(suffix.change(0)).status_code == 200
    before = suffix.get("telemetry")["shadow"]["accepted_at"]
    suffix.complete(LISTING * 3 + "item_0", 64)
    after = suffix.get("telemetry")["shadow"]["accepted_at"]
    assert sum(after) - sum(before) > 20


def test_a_lease_that_ends_falls_back(suffix):
    applied = suffix.put(suffix.change(8, lease_s=0.5, fallback_num_speculative_tokens=1)).json()
    assert (applied["state"], applied["rows"][0]["num_speculative_tokens"]) == ("live", 8)
    held = suffix.put({**suffix.change(2), "owner": "other"})
    assert (held.status_code, held.json()["error"], held.json()["owner"]) == (409, "lease_held", "test")
    time.sleep(0.6)
    table = suffix.get("table")
    assert (table["state"], table["rows"][0]["num_speculative_tokens"]) == ("fallback", 1)
    assert len(suffix.complete(PROMPTS[1], 8)) == 8


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        pytest.param(b"{", 400, "malformed", id="malformed JSON"),
        pytest.param(b"[1]", 400, "malformed", id="not an object"),
        pytest.param({"rows": "all"}, 400, "malformed", id="wrong type"),
        pytest.param({"surplus": 1}, 400, "malformed", id="unknown key"),
        pytest.param({"lease_s": -1}, 400, "malformed", id="negative lease"),
        pytest.param({"base_version": 10**6}, 409, "version_conflict", id="version conflict"),
        pytest.param({"fallback_num_speculative_tokens": 99}, 422, "table_refused", id="illegal fallback"),
        pytest.param(
            {"rows": [{"decode_batch_from": 1, "num_speculative_tokens": 9}]}, 422, "table_refused", id="over"
        ),
        pytest.param(
            {"rows": [{"decode_batch_from": 2, "num_speculative_tokens": 1}]}, 422, "table_refused", id="hole"
        ),
        pytest.param(
            {"rows": [{"decode_batch_from": 1, "num_speculative_tokens": k} for k in (1, 2)]},
            422,
            "table_refused",
            id="overlap",
        ),
        pytest.param({"rows": [sampled(99, 10)]}, 422, "table_refused", id="illegal sample"),
        pytest.param({"rows": [sampled(0, 1)]}, 400, "malformed", id="nothing but samples"),
        pytest.param(b"x" * 70_000, 413, "too_large", id="too large"),
    ],
)
def test_bad_puts_are_refused_and_the_last_good_table_stays(suffix, change, status, error):
    assert_refused(suffix, change, status, error)


def test_samples_of_off_and_of_drafts(suffix):
    copying = [LISTING * 3 + "item_0", PROMPTS[3]] * 4
    assert_chains_are_sampled(suffix, copying, 8, margin=0.4)


def test_once_a_lease_has_run_out_the_start_table_holds(suffix):
    start = suffix.get("table")["start_rows"]
    assert [row["num_speculative_tokens"] for row in start] == [8]
    change = suffix.change(2, lease_s=0.5, fallback_num_speculative_tokens=None)
    assert suffix.put(change).json()["fallback_num_speculative_tokens"] is None
    wait_for(lambda: suffix.get("table")["state"] == "fallback")
    assert suffix.get("table")["rows"] == start
    suffix.complete(SAMPLED_PROMPT, 8)
    assert suffix.get("telemetry")["num_speculative_tokens"] == 8


def test_a_browser_is_not_trusted(suffix):
    answer = suffix.put(suffix.change(1), headers={"Origin": "http://elsewhere.example"})
    assert answer.status_code == 403


def test_sampled_requests_are_guarded_where_verification_is_unsound(suffix, reference):
    if not suffix.get("capabilities")["warnings"]:
        pytest.skip("this vLLM verifies sampled requests soundly")
    assert suffix.put(suffix.change(8)).status_code == 200
    before = suffix.get("telemetry")
    sampled = {"temperature": 0.7, "seed": 1}
    with ThreadPoolExecutor(4) as pool:
        greedy = [pool.submit(suffix.complete, prompt) for prompt in PROMPTS]
        alone = [pool.submit(suffix.complete, SAMPLED_PROMPT, 32, **sampled) for _ in range(3)]
        assert [request.result() for request in greedy] == reference
        outputs = [request.result() for request in alone]
    assert suffix.get("telemetry")["guarded_steps"] > before["guarded_steps"]
    suffix.put(suffix.change(0))
    assert outputs == [suffix.complete(SAMPLED_PROMPT, 32, **sampled)] * 3


def test_outputs_are_kept_in_a_file(suffix, logs, target_model):
    """Every step looks whether a saving is due. What a request does not share is not in it."""
    kept = logs / "corpus"
    # At random, as two greedy answers can be the same.
    unique = {"temperature": 1.0, "seed": 1}
    own = suffix.complete("Nine green herons near the", 24, vllm_xargs=said(share=False), **unique)
    shared = suffix.complete("Seven blue lamps in the", 24)

    def holds(output):
        if not kept.exists():
            return False
        documents = documents_of(load(kept, "", fingerprint_of(target_model)))
        # Drafts that were accepted behind the end of the answer are in its document.
        return any(document[: len(output)].tolist() == output for document in documents)

    ends_s = time.monotonic() + 60
    while not holds(shared) and time.monotonic() < ends_s:
        suffix.complete(SAMPLED_PROMPT)
    assert holds(shared)
    assert not holds(own)
    corpus = load(kept, "", fingerprint_of(target_model))
    assert corpus.documents > 0
    output = specctl("corpus", "inspect", str(kept))
    assert output.returncode == 0, output.stderr


def test_salted_requests_share_nothing(suffix):
    """One namespace is configured: a salted request neither reads nor feeds the shared outputs."""
    assert suffix.put(suffix.change(8)).status_code == 200
    prompt = "Seven strange words follow here:"
    for _ in range(2):
        suffix.complete(prompt, 32, cache_salt="tenant")
    before = proposer(suffix)
    suffix.complete(prompt, 32, cache_salt="other tenant")
    after = proposer(suffix)
    assert after["hits_global"] + after["hits_frozen"] == before["hits_global"] + before["hits_frozen"]


def proposer(control) -> dict[str, float]:
    """The index's counters; they come at most twice a second."""
    time.sleep(0.6)
    control.complete("x", 2, cache_salt="nobody")
    return control.get("telemetry")["proposer"]


class TestDaemon:
    def test_it_retunes_the_running_server_and_stops_cleanly(self, suffix, tmp_path):
        assert suffix.put(suffix.change(0)).status_code == 200
        with autotune(suffix.server.url, tmp_path) as process:
            wait_for(lambda: has_looked(tmp_path), 60)
            ends_s = time.monotonic() + 30
            while time.monotonic() < ends_s and rows_value(suffix) == 0:
                suffix.complete(LISTING * 3 + "item_0", 32)
            assert rows_value(suffix) > 0, (tmp_path / "autotune.log").read_text()
            assert suffix.get("table")["owner"].startswith("autotune")
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        assert any(record.get("from") != record.get("to") for record in records)

    def test_rows_by_context_and_rules_for_classes_stay_while_it_decides(self, suffix, reference, tmp_path):
        """It decides for the short contexts alone; rules for classes are the policy's, which are the same."""
        limits = [{"kind": "plain", "max_num_speculative_tokens": 2}]
        sample = {"setting": {"num_speculative_tokens": 1}, "every_steps": 5}
        table = [
            {"decode_batch_from": 1, "num_speculative_tokens": 0, "context_to_tokens": LONG - 1},
            {**sampled(3, 5), "sample": sample, "context_from_tokens": LONG, "min_token_prob": 0.3},
        ]
        answer = suffix.put(suffix.change(0, rows=table, class_limits=limits))
        assert answer.status_code == 200, answer.text
        long_context = setting_at(answer.json(), 1, LONG)
        assert long_context["sample"]["setting"]["num_speculative_tokens"] == 1
        copying = LISTING * 3 + "item_0"
        expected = [*reference, suffix.complete(copying)]
        found = run_daemon(
            suffix,
            tmp_path,
            [*PROMPTS, copying],
            seconds=18,
            until=lambda found: found.changes,
            classes=limits,
        )
        assert_daemon_is_harmless(found, expected)
        assert found.changes
        for seen in found.tables[:-1]:
            assert {json.dumps(setting_at(seen, batch, LONG)) for batch in range(1, 9)} == {
                json.dumps(long_context)
            }
            assert [one["max_num_speculative_tokens"] for one in seen["class_limits"]] == [2]
        knobs = {knob for one in found.changes for moved in one["moved"].values() for knob in moved}
        assert "num_speculative_tokens" in knobs
        assert all("from context" not in words for one in found.changes for words in one["changes"])

    def test_dry_run_changes_nothing(self, suffix, tmp_path):
        wait_for(lambda: suffix.put(suffix.change(0)).status_code == 200, 40)
        version = suffix.get("table")["version"]
        with autotune(suffix.server.url, tmp_path, more=["--dry-run"]) as process:
            wait_for(lambda: has_looked(tmp_path), 60)
            for _ in range(4):
                suffix.complete(LISTING * 3 + "item_0", 32)
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        assert suffix.get("table")["version"] == version

    def test_status_is_readable(self, suffix):
        output = specctl("status", suffix.server.url)
        assert output.returncode == 0, output.stderr
        assert "specctl_suffix" in output.stdout


def has_looked(folder: Path) -> bool:
    """Whether the daemon has seen the server; a busy machine takes long to start it."""
    return "specctl_suffix on vllm" in (folder / "autotune.log").read_text()


def rows_value(control) -> int:
    """num_speculative_tokens for one decoding request."""
    return next(r for r in control.get("table")["rows"] if r["decode_batch_from"] == 1)[
        "num_speculative_tokens"
    ]


def steps_of_others(control, tokens: int) -> int:
    """Steps so far with another num_speculative_tokens."""
    cells = control.get("telemetry")["cells"]
    return sum(cell["steps"] for cell in cells if cell["num_speculative_tokens"] != tokens)


class TestRecordAndProfile:
    def test_a_log_of_the_server_and_its_profile_can_be_simulated(self, suffix, tmp_path):
        profile = recorded_and_simulated(suffix, tmp_path, [(40, 60), (80, 120)])
        assert profile["fingerprint"]["dtype"] == "float32"
        assert profile["measured"]["seconds"] < 120

    def test_a_table_that_is_leased_is_left_alone(self, suffix, tmp_path):
        assert suffix.put(suffix.change(3, lease_s=30)).status_code == 200
        refused = specctl("profile", suffix.server.url, "--output", str(tmp_path / "p.yaml"))
        assert refused.returncode == 1
        assert "leased by 'test'" in refused.stderr
        assert suffix.put(suffix.change(3)).status_code == 200


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory):
    """Where a user types the commands of the documents."""
    folder = tmp_path_factory.mktemp("user")
    shipped = Path(__file__).parents[2] / "policies" / "profiles" / "h200-llama8b-vllm032.yaml"
    shutil.copy(shipped, folder / "PROFILE")
    (folder / "token").write_text("unused\n")
    (folder / "my-policy.yaml").write_text("kind: goodput\n")
    return folder


@pytest.mark.parametrize("command", documented_on_a_server(), ids=lambda command: command.name)
def test_documented_commands_run(suffix, user_folder, command):
    daemon = ""
    with ExitStack() as stack:
        if command.words[0] == "top":
            port = free_port()
            daemon = f"http://127.0.0.1:{port}"
            stack.enter_context(autotune(suffix.server.url, user_folder, more=["--metrics-port", str(port)]))
            wait_for(lambda: is_up(f"{daemon}/healthz"))
        elif command.words[0] == "record":
            stack.enter_context(traffic(lambda prompt: suffix.complete(prompt, 32), [LISTING], 2))
        code, output = run(command, user_folder, suffix.server.url, daemon)
    # doctor may find something on the machine of the tests
    assert code in ({0, 1} if command.words[0] == "doctor" else {0}), output
    assert "Traceback" not in output


def is_up(url):
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
