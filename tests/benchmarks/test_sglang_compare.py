import json
import random
import re
import sys
import threading
from pathlib import Path

import httpx
import pytest

from benchmarks.gpu.sglang_arms import GREEDY, Arm, Deadline, Machine, Setting, standing, table_rows
from benchmarks.gpu.sglang_parts import against_best, compared, copying, gate, off, row_of, sets_of, tree
from benchmarks.gpu.sglang_sampled import SAMPLING, same_law, sampled
from benchmarks.gpu.sglang_settings import DEFAULTS, SETTINGS, chosen
from benchmarks.gpu.sglang_table import drafts, table
from benchmarks.gpu.ties import SAMPLED_TOKENS, Score
from testing.provenance import summary


def answer(outputs, seconds=1.0, steps=None, accepted=None):
    return {
        "seconds": seconds,
        "tokens": sum(map(len, outputs)),
        "outputs": outputs,
        "steps": steps,
        "accepted": accepted,
    }


class FakeArm:
    """A server that writes a number again and again; ``ends_with`` replaces each answer's last one."""

    def __init__(self, name, seconds=1.0, steps=None, dies_at=None, ends_with=None):
        self.name, self.setting = name, SETTINGS[name]
        self.deadline = Deadline(60)
        self.seconds, self.steps, self.dies_at = seconds, steps, dies_at
        self.asked, self.rows, self.ends_with, self.options = [], [], ends_with, set()
        self.scored, self.margin = [], 0.0

    def run(self, prompts, max_tokens, at_once=0, options=GREEDY):
        self.asked.append((prompts, at_once))
        self.options.add(tuple(options.items()))
        if len(self.asked) == self.dies_at:
            return None
        steps = None if self.steps is None else self.steps * len(prompts)
        outputs = [[7] * max_tokens for _ in prompts]
        for ids in outputs if self.ends_with is not None else []:
            ids[-1] = self.ends_with
        return answer(outputs, self.seconds, steps, steps)

    def score(self, contexts, tokens):
        """Of bf16 logits: 20 for the likeliest token, and the other one ``margin`` below; few are near 0."""
        self.scored += contexts
        sampled = tuple((1 + i % 128 / 128) * 2.0 ** (i % 5 - 2) - 20.0 for i in range(len(SAMPLED_TOKENS)))
        return [Score((-self.margin, 0.0), 0.0, sampled)] * len(contexts)

    def set_rows(self, rows):
        self.rows.append(tuple(rows))


class SteeredArm(FakeArm):
    """Each look at its telemetry finds one step more, of which the first after a change is ``late``."""

    def __init__(self, name, late=0):
        super().__init__(name)
        self.number, self.late, self.steps_by_number, self.behind = 8, late, {}, 0
        self.prompts = 0

    def set_rows(self, rows):
        before, self.number = self.number, rows[0][1]
        self.behind = self.late if before != self.number else 0
        self.before = before

    def get(self, route):
        if route == "capabilities":
            return {"num_speculative_tokens_legal": [0, 2, 4, 8]}
        # The first look after a change is before any step.
        number = self.number
        if self.behind:
            number, self.behind = self.before, self.behind - 1
        cells = [
            {"num_speculative_tokens": k, "steps": v, "decode_batch_to": 8}
            for k, v in self.steps_by_number.items()
        ]
        # Prompts come all the time.
        self.prompts = self.prompts + 1
        cells.append({"num_speculative_tokens": 0, "steps": self.prompts, "decode_batch_to": 0})
        self.steps_by_number[number] = self.steps_by_number.get(number, 0) + 1
        return {"decoding": 1, "cells": cells, "proposer": {"graph_bytes": 5.0}}


def test_a_setting_from_a_file_adds_to_the_known_ones(tmp_path):
    file = tmp_path / "arms.json"
    file.write_text(json.dumps({"mine": {"arguments": ["--x", 1], "rows": [[1, 2]], "places": 4}}))
    found = chosen(["mine", "off"], file)
    assert found["mine"] == Setting(("--x", "1"), rows=((1, 2),), places=4)
    with pytest.raises(ValueError, match=r"expected arms among .* got nobody"):
        chosen(["nobody"], file)
    with pytest.raises(ValueError, match=r"got \['argument'\]"):
        Setting.of({"argument": []})


def test_every_default_arm_is_known():
    assert set(sum(DEFAULTS.values(), ())) <= set(SETTINGS)


def test_the_command_names_heads_and_graph_sizes():
    machine = Machine(Path("model"), {"eagle3": "a/head"}, arguments=("--common",))
    parts = machine.command(SETTINGS["eagle3"], 1)
    assert "a/head" in parts
    assert "{eagle3}" not in parts
    assert parts[parts.index("--cuda-graph-max-bs-decode") + 1] == "8"
    assert parts.index("--common") < parts.index("--speculative-algorithm")


def test_rows_of_a_table_end_where_the_next_begins():
    first, last = table_rows([(1, 8), (33, 4)])
    assert (first["decode_batch_to"], last["decode_batch_from"]) == (32, 33)
    assert "decode_batch_to" not in last


def test_prompts_run_in_graphs_where_sizes_are_given():
    eager = Machine(Path("model")).command(SETTINGS["off"], 1)
    assert "--disable-prefill-cuda-graph" in eager
    command = Machine(Path("model"), prefill_graphs=(64, 256)).command(SETTINGS["off"], 1)
    at = command.index("--cuda-graph-bs-prefill")
    assert command[at : at + 3] == ["--cuda-graph-bs-prefill", "64", "256"]
    assert "--disable-prefill-cuda-graph" not in command


def test_no_prompt_occurs_twice_unless_it_may():
    prompts = [[i] for i in range(40)]
    sets = sets_of(prompts, [1, 4, 6], 2)
    assert [len(found) for found in sets.values()] == [2, 2, 2]
    used = [ids[0] for found in sets.values() for one in found for ids in one]
    assert len(set(used)) == len(used) == 28
    with pytest.raises(ValueError, match="expected 64 prompts, got 40"):
        sets_of(prompts, [32], 2)
    assert len(sets_of(prompts, [32], 2, may_repeat=True)[32]) == 2


def test_a_row_leaves_the_first_answer_out_of_all_but_the_outputs():
    answers = [answer([[1, 2]], 9.0, 1, 1), answer([[1, 2, 3, 4, 5]], 2.0, 2, 3)]
    truth = [answer([[1, 9]]), answer([[1, 2, 3, 4, 5]])]
    row = row_of(answers, truth)
    assert row["tokens/s"] == [2.5]
    assert (row["tokens a step"], row["accepted drafts a step"]) == (2.0, 1.5)
    assert (row["outputs"], row["outputs as off"]) == (2, 1)


def test_copying_takes_turns():
    arms = [FakeArm("off", 1.0), FakeArm("ngram", 0.6, 4), FakeArm("specctl_suffix", 0.4, 2)]
    figures = copying(arms, [[i] for i in range(100)], [1, 8], 2, 5)
    assert figures["tokens/s against ngram"]["specctl_suffix"]["8"]["median"] == pytest.approx(1.5)
    assert [at_once for _, at_once in arms[0].asked] == [1, 1, 1, 8, 8, 8]
    assert arms[0].asked == arms[1].asked


@pytest.mark.parametrize(("margin", "has_ratio"), [(0.0, True), (0.25, True), (0.375, False)])
def test_outputs_that_part_by_ties_alone_get_a_ratio(margin, has_ratio, capsys):
    arms = [FakeArm("off"), FakeArm("ngram", 0.6, 4), FakeArm("specctl_suffix", 0.4, 2, ends_with=3)]
    arms[0].margin = margin
    figures = copying(arms, [[i] for i in range(100)], [4], 1, 5)
    assert arms[0].scored == [[i, 7, 7, 7, 7] for i in range(16)]
    told = figures["gate"]["specctl_suffix"]
    assert (told["outputs as off"], told["outputs"], told["passes"]) == (0, 16, has_ratio)
    assert ("specctl_suffix" in figures["tokens/s against ngram"]) is has_ratio
    printed = capsys.readouterr().out
    assert f"at most {margin:g} apart in log probability ({margin * 8:g} bf16 steps)" in printed
    assert ('no ratio, {"outputs as off": 0, "ties": 0, "outputs": 16' in printed) is not has_ratio


def test_sampled_requests_are_compared_by_speed_and_by_law(capsys):
    arms = [FakeArm("specctl_suffix-engine-kernels", 0.6, 2), FakeArm("specctl_suffix", 0.5, 2)]
    figures = sampled(arms, [[i] * (i + 3) for i in range(100)], [4], 2, 5)
    assert figures["tokens/s against specctl_suffix-engine-kernels"]["specctl_suffix"]["4"]["median"] == 1.2
    assert figures["law"]["passes"] == {"specctl_suffix": True}
    assert arms[0].options == arms[1].options == {tuple(SAMPLING.items())}
    many = [asked for asked, _ in arms[0].asked if len(asked) > 100]
    assert [len(asked[0]) for asked in many] == [3, 4], "the first prompts, before the speeds"
    assert len(arms[0].asked[-1][0]) < 100
    assert "1.200 (1.200 to 1.200)" in capsys.readouterr().out


def test_sampled_requests_of_another_law_get_no_ratio():
    arms = [FakeArm("specctl_suffix-engine-kernels", 0.6, 2), FakeArm("specctl_suffix", 0.5, 2, ends_with=3)]
    figures = sampled(arms, [[i] for i in range(100)], [4], 2, 5)
    assert figures["law"]["passes"] == {"specctl_suffix": False}
    assert "specctl_suffix" not in figures["tokens/s against specctl_suffix-engine-kernels"]


def test_two_servers_of_one_law_are_told_from_two_of_different_ones():
    generator = random.Random(0)

    def answers(shares):
        return [[generator.choices(range(40), shares)[0], 7] for _ in range(2_000)]

    steep = [0.8**i for i in range(40)]
    first, again = same_law(answers(steep), answers(steep))
    assert first > 1e-3
    assert again == 1.0
    assert same_law(answers(steep), answers([1.5, *steep[1:]]))[0] < 1e-4


def test_an_arm_whose_outputs_were_not_scored_gets_no_ratio():
    row = {"4": {"outputs": 8, "outputs as off": 7, "parted": {"not scored": 1}}}
    assert gate(row)["passes"] is False
    assert gate({"4": {}})["passes"] is None


def test_a_score_is_read_from_what_sglang_answers():
    def meta(pair):
        asked = [[-0.5 - i, token, None] for i, token in enumerate([*pair, *SAMPLED_TOKENS])]
        return {"output_token_ids_logprobs": [asked], "output_top_logprobs": [[[-0.25, 9, None]]]}

    bodies = []

    class Client:
        def post(self, path, json, timeout):
            bodies.append(json)
            told = [{"meta_info": meta(ids[:2])} for ids in json["token_ids_logprob"]]
            return httpx.Response(200, json=told, request=httpx.Request("POST", "http://x"))

    arm = Arm("off", SETTINGS["off"], None, Client(), Deadline(60))
    scores = arm.score([[1, 2]] * 40, [[3, 4]] * 40)
    assert [len(body["input_ids"]) for body in bodies] == [32, 8]
    assert len(scores) == 40
    assert (scores[0].asked, scores[0].best) == ((-0.5, -1.5), -0.25)
    assert len(scores[0].sampled) == len(SAMPLED_TOKENS)


def test_the_next_request_is_sent_when_one_has_ended():
    third_began = threading.Event()

    class Client:
        def post(self, path, json, timeout):
            [token] = json["input_ids"]
            if token == 0:
                assert third_began.wait(20), "it waits for the slowest of two"
            if token == 2:
                third_began.set()
            told = {"output_ids": [token] * 3, "meta_info": {"spec_verify_ct": 2}}
            return httpx.Response(200, json=told, request=httpx.Request("POST", "http://x"))

    arm = Arm("off", SETTINGS["off"], None, Client(), Deadline(60))
    told = arm.run([[0], [1], [2]], 3, at_once=2)
    assert told["outputs"] == [[0] * 3, [1] * 3, [2] * 3]
    assert (told["tokens"], told["steps"], told["accepted"]) == (9, 6, None)


def test_an_arm_that_dies_leaves_the_others_measured():
    arms = [FakeArm("off"), FakeArm("ngram", 0.5, 4, dies_at=2)]
    figures = compared(arms, sets_of([[i] for i in range(100)], [4, 8], 2), 5)
    assert set(figures["arms"]["off"]) == {"4", "8"}
    assert figures["arms"]["ngram"] == {}
    assert figures["left out"] == ["4 at once: ngram has died"]


def test_a_set_that_time_cuts_off_leaves_those_before_it():
    arms = [FakeArm("off"), FakeArm("ngram", 0.6, 4), FakeArm("specctl_suffix", 0.4, 2, dies_at=3)]
    asked = arms[2].run

    def run(*given):
        answer = asked(*given)
        if answer is None:
            for arm in arms:
                arm.deadline = Deadline(-1)
        return answer

    arms[2].run = run
    figures = copying(arms, [[i] for i in range(100)], [4], 3, 5)
    assert figures["left out"] == ["4 at once: 2 of 4 sets"]
    assert figures["arms"]["specctl_suffix"]["4"]["summary"]["repeats"] == 1
    assert figures["tokens/s against ngram"]["specctl_suffix"]["4"]["median"] == 1.5


def test_what_time_does_not_suffice_for_is_named():
    arms = [FakeArm("off")]
    arms[0].deadline = Deadline(-1)
    figures = compared(arms, sets_of([[0]] * 20, [4], 2), 5)
    assert figures["left out"] == ["4 at once: 2 of 2 sets"]


def test_off_holds_ours_at_no_drafts_and_leaves_stock_out():
    arms = [FakeArm("off"), FakeArm("ngram"), FakeArm("specctl_suffix", 1.01)]
    figures = off(arms, [], [8], 1, 5)
    assert arms[1].asked == []
    assert arms[2].rows == [((1, 0),), SETTINGS["specctl_suffix"].rows]
    assert figures["tokens/s against off"]["specctl_suffix"]["8"]["median"] == pytest.approx(1 / 1.01)


def test_trees_are_told_against_the_chain_of_their_width():
    names = {"off-few": None, "chain-16": 4, "tree-16-4x6": 3, "tree-16-2x8": 5, "chain-32": 4}
    arms = [FakeArm(name, steps=steps) for name, steps in names.items()]
    figures = tree(arms, [[i] for i in range(20)], [1], 1, 13)
    assert figures["tokens a step"]["16"] == {"chain-16": 3.0, "tree-16-4x6": 4.0, "tree-16-2x8": 2.4}
    told = figures["trees against chains"]
    assert set(told) == {"16"}
    assert told["16"] == {"best": "tree-16-4x6", "tree / chain": round(4 / 3, 4)}


def test_a_tree_with_other_outputs_is_told_against_nothing():
    arms = [FakeArm("off-few"), FakeArm("chain-16", steps=4), FakeArm("tree-16-4x6", steps=3, ends_with=3)]
    arms[0].margin = 2.0
    figures = tree(arms, [[i] for i in range(20)], [1], 1, 13)
    assert set(figures["tokens a step"]["16"]) == {"chain-16", "tree-16-4x6"}
    assert figures["trees against chains"] == {}


@pytest.mark.parametrize(("late", "is_soon"), [(0, True), (3, False)])
def test_steps_behind_a_change_of_the_table_are_counted(late, is_soon):
    arms = [FakeArm("off"), SteeredArm("specctl_suffix", late)]
    found = table(arms, [[i] for i in range(4)], [2], 1, 5)["arms"]["specctl_suffix"]
    assert found["within one step"] is is_soon
    assert found["outputs"] == found["outputs as off"] > 0


def test_every_prepared_number_is_measured_on_prompts_of_its_own():
    arm = SteeredArm("specctl_suffix")
    found = drafts([arm], [[i] for i in range(200)], [4], 2, 5)
    assert set(found["arms"]["specctl_suffix"]["4"]) == {"0", "2", "4", "8"}
    used = [ids[0] for prompts, _ in arm.asked for ids in prompts]
    assert len(set(used)) == len(used) == 48
    with pytest.raises(ValueError, match="16 prompts more were needed"):
        drafts([arm], [[i] for i in range(100)], [16], 2, 5)


def test_a_server_that_does_not_start_is_told_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    code = "import sys; sys.exit('no such algorithm')"
    monkeypatch.setattr(Machine, "command", lambda *_: [sys.executable, "-c", code])
    with standing({"off": SETTINGS["off"]}, Machine(tmp_path), tmp_path, Deadline(60)) as arms:
        assert arms == []
    assert re.search("off: does not stand: .*no such algorithm", capsys.readouterr().out, re.DOTALL)


def test_a_run_without_an_arm_with_a_table_says_so():
    with pytest.raises(RuntimeError, match="no arm with a live table stands"):
        table([FakeArm("off")], [[1]], [1], 1, 5)


def test_counts_are_left_out_where_one_answer_has_none():
    assert row_of([answer([[1]], steps=1, accepted=0), answer([[1]])], None)["tokens a step"] is None


def test_ours_are_told_against_the_quickest_of_the_others() -> None:
    def row(speed: float) -> dict[str, object]:
        speeds = [speed, speed]
        return {"tokens/s": speeds, "summary": summary(speeds), "outputs": 2, "outputs as off": 2}

    rows = {
        "off": {"1": row(50.0)},
        "eagle3": {"1": row(100.0), "8": row(400.0)},
        "eagle3-8": {"1": row(110.0), "8": row(300.0)},
        "specctl_peagle-8": {"1": row(121.0), "8": row(410.0)},
    }
    found = against_best(rows, "eagle3", "specctl_peagle")["against the quickest eagle3"]
    assert [found["1"]["quickest"], found["8"]["quickest"]] == ["eagle3-8", "eagle3"]
    assert found["1"]["tokens/s against eagle3-8"]["specctl_peagle-8"]["1"]["median"] == 1.1
    assert found["8"]["tokens/s against eagle3"]["specctl_peagle-8"]["8"]["median"] == 1.025
