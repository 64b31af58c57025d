import pytest
from specctl_vllm.control.steering import start_rows
from specctl_vllm.options import OPTIONS_ENV, options_from_env, parse_speculative_config

TABLE = "num_speculative_tokens_per_batch_size"


def test_stock_config_without_specctl_is_left_alone(monkeypatch):
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert parse_speculative_config({"method": "ngram", "num_speculative_tokens": 3}) is None


def test_naming_the_plugin_asks_for_it(monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "other,specctl")
    parsed = parse_speculative_config({"method": "ngram", "num_speculative_tokens": 3})
    assert parsed is not None
    assert parsed[1].method == "ngram"


def test_suffix_becomes_a_custom_class_with_validated_options():
    config, options = parse_speculative_config(
        {"method": "specctl_suffix", "num-speculative-tokens": 8, "min_token_prob": 0.2, "use_global": False}
    )
    assert config == {
        "method": "custom_class",
        "model": "specctl_vllm.proposers.suffix.SuffixProposer",
        "num_speculative_tokens": 8,
    }
    assert options.method == "specctl_suffix"
    assert (options.suffix.min_token_prob, options.suffix.use_global) == (0.2, False)


def test_on_model_runner_v2_suffix_takes_the_place_of_the_n_grams_of_the_device():
    config, options = parse_speculative_config(
        {"method": "specctl_suffix", "num_speculative_tokens": 8, "device_bytes": 2**20}, on_device=True
    )
    assert config == {
        "method": "ngram_gpu",
        "num_speculative_tokens": 8,
        "num_speculative_tokens_per_batch_size": [[1, 1, 8]],
    }
    assert options.suffix.device_bytes == 2**20


def test_on_model_runner_v2_graphs_are_asked_for_and_a_users_table_stays():
    asked = {"method": "eagle3", "model": "m", "num_speculative_tokens": 3, "specctl": {}}
    config, options = parse_speculative_config(asked, on_device=True)
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 3]]
    assert options.start_table is None
    for none in (None, []):
        config, _ = parse_speculative_config(
            {**asked, "num_speculative_tokens_per_batch_size": none}, on_device=True
        )
        assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 3]]
    table = [[1, 16, 3], [17, 256, 0]]
    config, _ = parse_speculative_config(
        {**asked, "num_speculative_tokens_per_batch_size": table}, on_device=True
    )
    assert config["num_speculative_tokens_per_batch_size"] == table


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        {"method": "specctl_suffix"},
        {"method": "specctl_peagle", "model": "m"},
        {"method": "eagle3", "model": "m", "num_speculative_tokens": 3, "specctl": {}},
    ],
    ids=lambda asked: asked["method"],
)
def test_a_users_table_goes_to_vllm_as_it_is_and_to_the_engine_sorted(monkeypatch, asked, on_device):
    table = [[17, 256, 0], (1, 16, "3")]
    config, options = parse_speculative_config({**asked, TABLE.replace("_", "-"): table}, on_device)
    assert config[TABLE] == table
    assert options.start_table == ((1, 16, 3), (17, 256, 0))
    monkeypatch.setenv(OPTIONS_ENV, options.model_dump_json())
    assert options_from_env() == options


@pytest.mark.parametrize("more", [{}, {TABLE: None}, {TABLE: []}], ids=["not given", "null", "empty"])
def test_without_a_table_the_full_number_holds_everywhere(more):
    _, options = parse_speculative_config({"method": "specctl_suffix", **more})
    assert options.start_table is None
    (row,) = start_rows(options.start_table, range(9))
    assert (row.decode_batch_from, row.decode_batch_to, row.num_speculative_tokens) == (1, None, 8)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param([[1, 4, 2]], id="short of the batch"),
        pytest.param([[1, 1, 3], [2, 2, 0], [3, 40, 1]], id="past the batch"),
        pytest.param([[9, 9, 1], [1, 2, 3]], id="a hole, unsorted"),
        pytest.param([[1, 3, 9], [4, 8, 4]], id="over the configured number"),
    ],
)
def test_start_rows_are_what_vllm_looks_up(table):
    utils = pytest.importorskip("vllm.v1.spec_decode.dynamic.utils")
    _, options = parse_speculative_config({"method": "ngram", TABLE: table, "specctl": {}})
    rows = start_rows(options.start_table, range(5))
    found = [row.num_speculative_tokens for batch in range(1, 33) for row in rows if covers(row, batch)]
    assert found == utils.build_dynamic_sd_schedule_lookup(table, 32, 4)[1:]


def covers(row, batch):
    return row.decode_batch_from <= batch <= (row.decode_batch_to or batch)


def test_an_engine_that_cannot_be_steered_starts_with_the_configured_number():
    (row,) = start_rows(((1, 4, 2), (5, 8, 0)), (3,))
    assert (row.decode_batch_to, row.num_speculative_tokens) == (None, 3)


def test_the_control_block_goes_with_any_method(tmp_path):
    config, options = parse_speculative_config(
        {"method": "eagle3", "model": "m", "specctl": {"token_file": str(tmp_path), "lease_max_s": 60}}
    )
    assert config == {"method": "eagle3", "model": "m"}
    assert options.suffix is None
    assert (options.control.token_file, options.control.lease_max_s) == (tmp_path, 60.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"method": "specctl_sufix"},
            "'specctl_sufix' is not known; specctl brings specctl_hybrid, specctl_peagle, specctl_suffix",
        ),
        ({"method": "specctl_suffix", "min_token_probs": 0.1}, "did you mean 'min_token_prob'"),
        ({"method": "specctl_suffix", "zzz": 0.1}, "no option 'zzz'; allowed: "),
        (
            {"method": "specctl_suffix", "min_token_prob": 2},
            "min_token_prob: .*less than or equal to 1, got 2",
        ),
        ({"method": "specctl_peagle"}, "expects model, the folder or name of its draft head, got None"),
        ({"method": "specctl_peagle", "model": "m", "use_global": True}, "has no option 'use_global'"),
        ({"method": "specctl_suffix", "num_speculative_tokens": 0}, "from 1 to 64, got 0"),
        ({"method": "specctl_suffix", "num_speculative_tokens": "8"}, "from 1 to 64, got '8'"),
        ({"method": "ngram", "specctl": {"token": "x"}}, r"specctl\.token: "),
        ({"method": "ngram", "specctl": {"lease_max_s": -1}}, r"specctl\.lease_max_s: .*got -1"),
        ({"method": "specctl_suffix", TABLE: {"1-4": 3}}, f"{TABLE}: .*valid tuple"),
        ({"method": "specctl_suffix", TABLE: [[1, 4]]}, rf"{TABLE}\.0\.2: Field required"),
        ({"method": "specctl_suffix", TABLE: [[1, 4, -1]]}, rf"{TABLE}\.0\.2: .*equal to 0, got -1"),
        ({"method": "specctl_suffix", TABLE: [[0, 4, 1]]}, rf"{TABLE}\.0\.0: .*equal to 1, got 0"),
        ({"method": "specctl_suffix", TABLE: [[2, 4, 1]]}, f"{TABLE}: .*must start at 1, got"),
        (
            {"method": "specctl_suffix", TABLE: [[1, 2, 1], [5, 4, 1]]},
            "must not end before it starts: 5 to 4",
        ),
        ({"method": "ngram", "specctl": {}, TABLE: [[1, 4, 1], [4, 5, 0]]}, "must not overlap: 4 is in two"),
    ],
)
def test_mistakes_are_named(config, message):
    with pytest.raises(ValueError, match=message):
        parse_speculative_config(config)


def test_peagle_becomes_a_head_that_drafts_in_parallel():
    asked = {"method": "specctl_peagle", "model": "head", "draft_sample_method": "probabilistic"}
    config, options = parse_speculative_config(asked)
    assert config == {
        "method": "eagle3",
        "model": "head",
        "num_speculative_tokens": 5,
        "parallel_drafting": True,
        "draft_sample_method": "probabilistic",
    }
    assert options.method == "specctl_peagle"
    config, _ = parse_speculative_config(asked, on_device=True)
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 5]]
