"""Stock methods of a real vLLM under the same table, and tokens."""

import asyncio
import importlib.util
import json
import time
from math import hypot

import httpx
import pytest
from specctl_vllm.options import Options
from specctl_vllm.patches import of_server
from support.daemon_beside import assert_daemon_is_harmless, run_daemon
from support.doctor_codes import doctor_codes, doctor_codes_of_launch
from support.engine_control import CONTROL_TOKEN, controlled_server
from support.sampled_steps import assert_chains_are_sampled, assert_samples_fill_both_cells, chain, ran

from benchmarks.simulation_check import Check, Load
from testing.lossless import compare
from testing.servers import vllm_server

pytestmark = pytest.mark.engine

READ = {"Authorization": "Bearer read-token-of-the-tests"}
PROMPTS = [
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    "Once upon a time there was a",
    "1 2 3 4 1 2 3 4 1 2 3",
]
MANY_PROMPTS = PROMPTS * 3


def assert_lossless(control, headers=None):
    """Greedy output equals the same server's without drafts, while every legal value goes by."""
    assert control.put(control.change(0)).status_code == 200
    reference = [control.complete(prompt) for prompt in PROMPTS] * 3

    async def run():
        async with httpx.AsyncClient(base_url=control.server.url, timeout=300, headers=headers) as client:
            return await compare(
                client, "model", MANY_PROMPTS, reference, max_tokens=32, concurrency=4, every_s=0.02
            )

    result = asyncio.run(run())
    assert result.differing == ()
    assert result.tables >= 5


def assert_daemon_beside_is_harmless(control, folder, token=None):
    assert control.put(control.change(0)).status_code == 200
    prompts = PROMPTS[:4]
    reference = [control.complete(prompt) for prompt in prompts]
    assert_daemon_is_harmless(run_daemon(control, folder, prompts, token=token), reference)


class TestNgram:
    def test_lossless_while_the_table_changes(self, ngram):
        assert_lossless(ngram, dict(ngram.client.headers))

    def test_its_patches_are_those_of_the_list(self, ngram):
        expected = [patch.target for patch in of_server(False, Options(method="ngram"))]
        assert ngram.get("capabilities")["patches"] == expected

    def test_samples_of_off_and_of_drafts(self, ngram):
        assert_chains_are_sampled(ngram, [PROMPTS[0], PROMPTS[3]] * 3, 4, margin=0.4, max_tokens=48)

    def test_the_daemon_beside_it(self, ngram, tmp_path):
        assert_daemon_beside_is_harmless(ngram, tmp_path, CONTROL_TOKEN)

    def test_doctor_finds_that_it_may_not_read(self, ngram):
        assert doctor_codes(ngram.server.url) == {"access"}

    def test_every_legal_value_is_obeyed(self, ngram):
        for tokens in ngram.get("capabilities")["num_speculative_tokens_legal"]:
            assert ngram.put(ngram.change(tokens)).status_code == 200
            ngram.complete(PROMPTS[3], 16)
            assert ngram.get("telemetry")["num_speculative_tokens"] == tokens

    @pytest.mark.parametrize("authorization", ["", "Bearer wrong", "Basic abc"])
    def test_wrong_tokens_are_turned_away(self, ngram, authorization):
        headers = {"Authorization": authorization}
        for answer in (
            ngram.client.get("/specctl/v1/table", headers=headers),
            ngram.client.put("/specctl/v1/table", content=b"{}", headers=headers),
        ):
            assert (answer.status_code, answer.json()["error"]) == (401, "denied")

    def test_the_read_scope_cannot_change_the_table(self, ngram):
        assert ngram.client.get("/specctl/v1/telemetry", headers=READ).status_code == 200
        assert ngram.put(ngram.change(1), headers=READ).status_code == 403


class TestEagle3:
    def test_lossless_while_the_table_changes(self, eagle3):
        assert_lossless(eagle3)

    def test_doctor_finds_nothing_and_then_what_was_planted(self, eagle3, tmp_path):
        for prompt in MANY_PROMPTS:
            eagle3.complete(prompt)
        assert doctor_codes(eagle3.server.url, "--policy", "balanced") == set()
        policy = tmp_path / "p.yaml"
        policy.write_text("kind: goodput\nknobs: {num_speculative_tokens: {min: 9, max: 12}}\n")
        assert doctor_codes(eagle3.server.url, "--policy", str(policy)) == {"policy-cannot-act"}
        assert eagle3.put(eagle3.change(2, lease_s=0.5, owner="autotune gone")).status_code == 200
        time.sleep(1.0)
        assert doctor_codes(eagle3.server.url) == {"lease-ran-out"}

    def test_samples_of_off_and_of_drafts(self, eagle3):
        assert_chains_are_sampled(eagle3, MANY_PROMPTS, 4, max_tokens=48)

    def test_the_daemon_beside_it(self, eagle3, tmp_path):
        assert_daemon_beside_is_harmless(eagle3, tmp_path)

    @pytest.mark.parametrize(("base", "sampled"), [(2, 4), (4, 1)])
    def test_samples_of_another_number_at_every_second_step(self, eagle3, base, sampled):
        reference, _ = ran(eagle3, [{"decode_batch_from": 1, "num_speculative_tokens": 0}], MANY_PROMPTS)
        shapes = chain(base), chain(sampled)
        assert_samples_fill_both_cells(eagle3, reference, *shapes, MANY_PROMPTS, every_steps=2)

    @pytest.mark.parametrize(
        ("setting", "words"),
        [
            ({"num_speculative_tokens": 5}, "5 is not one of 0, 1, 2, 3, 4"),
            ({"num_speculative_tokens": 2, "tree_topk": 2}, "vLLM drafts and verifies chains"),
            ({"num_speculative_tokens": 2, "verify_width_tokens": 8}, "8 is not one of 3"),
            ({"num_speculative_tokens": 2, "min_token_prob": 0.5}, "cannot be chosen by their chances"),
        ],
    )
    def test_a_sample_that_cannot_be_is_refused(self, eagle3, setting, words):
        assert eagle3.put(eagle3.change(3)).status_code == 200
        sample = {"setting": setting, "every_steps": 10}
        row = {"decode_batch_from": 1, "num_speculative_tokens": 3, "sample": sample}
        refused = eagle3.put(eagle3.change(3, rows=[row]))
        assert refused.status_code == 422
        (refusal,) = refused.json()["refusals"]
        assert refusal["field"].startswith("sample.setting.")
        assert words in refusal["reason"]
        assert eagle3.get("table")["rows"][0]["sample"] is None

    def test_fewer_drafts_cost_fewer_draft_passes(self, eagle3):
        for tokens in (1, 4):
            assert eagle3.put(eagle3.change(tokens)).status_code == 200
            eagle3.complete(PROMPTS[2], 64)
        cells = eagle3.get("telemetry")["cells"]
        draft_s = {
            cell["num_speculative_tokens"]: cell["draft_s"] / cell["steps"]
            for cell in cells
            if cell["decode_batch_to"] == 1 and not cell["has_prefill"]
        }
        assert draft_s[1] < draft_s[4]

    @pytest.mark.alone
    # aiohttp leaves a socket to the garbage collector where a request is cancelled while it connects.
    @pytest.mark.filterwarnings("ignore:.*unclosed.*socket:pytest.PytestUnraisableExceptionWarning")
    def test_the_simulator_foretells_its_tokens_per_second(self, eagle3, tmp_path):
        """What drafting gains, within 7 %: a ratio, as far as a machine that others use can tell. Absolute
        times hold for a quiet machine only, where ``benchmarks.simulation_check`` measures them; here the
        sender shares two cores with the server."""
        loads = [Load(number, 0.0, 64) for number in (0, 4)]
        # A slower machine does not come to 4 drafts for 8 requests within 15 s, and would have to guess them.
        check = Check(eagle3.server.url, loads, tmp_path, seconds=25.0)
        for _ in range(3):
            check.run_round()
        off, drafting = (result["from the arrivals"] for result in check.results())
        gain_miss = (1.0 + drafting["miss"]) / (1.0 + off["miss"]) - 1.0
        assert abs(gain_miss) <= 0.07 + hypot(off["error"], drafting["error"]), (off, drafting)
        assert max(abs(off["miss"]), abs(drafting["miss"])) <= 0.2, (off, drafting)


def test_mtp_is_lossless_while_the_table_changes(tiny_mtp, logs, tmp_path):
    config = {"method": "mtp", "num_speculative_tokens": 3, "specctl": {}}
    arguments = ["--load-format", "dummy"]
    with controlled_server(tiny_mtp, logs / "mtp.log", config, arguments=arguments) as control:
        assert_lossless(control)
        assert control.get("capabilities")["num_speculative_tokens_legal"] == [0, 1, 2, 3]
        # Its weights are random: nothing says how much is accepted.
        assert_chains_are_sampled(control, PROMPTS[:4], 3, margin=1.0)
        assert_daemon_beside_is_harmless(control, tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            {"method": "eagle3", "model": "reference-peagle", "parallel_drafting": True}, id="p-eagle"
        ),
        pytest.param({"method": "draft_model", "model": "reference-target"}, id="draft_model"),
    ],
    ids=["p-eagle", "draft_model"],
)
def test_other_drafters_are_lossless_while_the_table_changes(shared_models, logs, tmp_path, config):
    config = {**config, "model": str(shared_models / config["model"]), "num_speculative_tokens": 3}
    log = logs / f"{config['method']}.log"
    with controlled_server(shared_models / "reference-target", log, {**config, "specctl": {}}) as control:
        assert_lossless(control)
        assert_chains_are_sampled(control, MANY_PROMPTS, 3)
        assert_daemon_beside_is_harmless(control, tmp_path)


@pytest.mark.skipif(
    importlib.util.find_spec("arctic_inference") is None,
    reason="stock suffix needs arctic-inference, which is no dependency of this project",
)
def test_stock_suffix_survives_every_value(shared_models, logs):
    config = {"method": "suffix", "num_speculative_tokens": 4, "specctl": {}}
    with controlled_server(shared_models / "reference-target", logs / "arctic.log", config) as control:
        assert_lossless(control)


def test_a_server_that_did_not_ask_for_specctl_is_stock(target_model, logs):
    config = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    with vllm_server(target_model, logs / "stock.log", config) as server:
        assert httpx.get(f"{server.url}/specctl/v1/table").status_code == 404
        assert doctor_codes(server.url) == {"plugin-not-loaded"}


def test_an_unknown_option_stops_the_start_with_its_name(target_model, logs):
    config = {"method": "specctl_suffix", "min_token_probs": 0.1}
    server = vllm_server(target_model, logs / "typo.log", config)
    command = "vllm", "serve", str(target_model), "--speculative-config", json.dumps(config)
    assert doctor_codes_of_launch(*command) == {"config-refused"}
    with pytest.raises(RuntimeError, match="did you mean 'min_token_prob'"):
        server.__enter__()
