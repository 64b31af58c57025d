"""A llama target and its P-EAGLE head in plain torch, without an engine: what greedy decoding with drafts
must come to, step by step. Float32, no cache: every step computes the whole text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

__all__ = ["PlainPEagle", "Step"]

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Step:
    drafts: tuple[int, ...]
    accepted: int


class _Layers:
    """The llama layers of one checkpoint."""

    def __init__(self, folder: Path, prefix: str) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.config = {**config.get("transformer_layer_config", {}), **config}
        self.weights = {
            name.removeprefix(prefix): weight.float()
            for name, weight in load_file(str(folder / "model.safetensors")).items()
        }

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[f"{name}.weight"]

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", torch.zeros(1))

    def attend(self, name: str, x: torch.Tensor) -> torch.Tensor:
        size = self.config["head_dim"]
        heads = {"q": self.config["num_attention_heads"], "k": self.config["num_key_value_heads"]}
        heads["v"] = heads["k"]
        q, k, v = (
            self.linear(f"{name}.{part}_proj", x).view(len(x), heads[part], size).transpose(0, 1)
            for part in "qkv"
        )
        inverse = self.config["rope_theta"] ** -(torch.arange(0, size, 2) / size)
        angles = torch.arange(len(x))[:, None] * torch.cat([inverse, inverse])
        q, k = (one * angles.cos() + _turned(one) * angles.sin() for one in (q, k))
        done = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.linear(f"{name}.o_proj", done.transpose(0, 1).reshape(len(x), -1))

    def feed(self, name: str, x: torch.Tensor) -> torch.Tensor:
        gate = torch.nn.functional.silu(self.linear(f"{name}.gate_proj", x))
        return self.linear(f"{name}.down_proj", gate * self.linear(f"{name}.up_proj", x))


def _shift(net: _Layers, best: torch.Tensor) -> torch.Tensor:
    """From ids of a draft vocabulary to the target's."""
    shifts = net.weights.get("d2t")
    return torch.zeros_like(best) if shifts is None else shifts.long()[best]


def _turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], dim=-1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small matrices: threads that wait for each other take 30 times as long where others run too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class PlainPEagle:
    """reference-target and reference-peagle, or others of their shapes: the head reads the states before the
    layers that it names, else before 2, n / 2 and n - 3, and shares the target's embedding."""

    def __init__(self, target: Path, head: Path) -> None:
        self._target, self._head = _Layers(target, "model."), _Layers(head, "")
        layers = self._target.config["num_hidden_layers"]
        named = self._head.config.get("eagle_aux_hidden_state_layer_ids")
        self._read = named or (2, layers // 2, layers - 3)

    def target(self, ids: list[int]) -> tuple[list[int], torch.Tensor]:
        """The token after each of ``ids``, and [len(ids), 3 H] states for the head."""
        net = self._target
        x, states = net.weights["embed_tokens.weight"][ids], []
        for number in range(net.config["num_hidden_layers"]):
            if number in self._read:
                states.append(x)
            x = x + net.attend(f"layers.{number}.self_attn", net.norm(f"layers.{number}.input_layernorm", x))
            x = x + net.feed(f"layers.{number}.mlp", net.norm(f"layers.{number}.post_attention_layernorm", x))
        logits = net.norm("norm", x) @ net.weights["embed_tokens.weight"].T
        return logits.argmax(-1).tolist(), torch.cat(states, dim=-1)

    def drafts(self, ids: list[int], states: torch.Tensor, number: int) -> tuple[int, ...]:
        """What the head drafts after ``ids``; states: the target's of all of them but the last."""
        net = self._head
        mask = net.config.get("ptd_token_id", net.config.get("mask_token_id"))
        tokens = ids[1:] + [mask] * (number - 1)
        embedded = self._target.weights["embed_tokens.weight"][tokens]
        masks = net.weights["mask_hidden"].view(1, -1).expand(number - 1, -1)
        x = net.linear("fc", torch.cat([states, masks]))
        for layer in range(net.config["num_hidden_layers"]):
            name = f"layers.{layer}"
            if layer == 0:
                embedded = net.norm(f"{name}.input_layernorm", embedded)
                normed = net.norm(f"{name}.hidden_norm", x)
                given = torch.cat([embedded, normed], dim=-1)
                x = normed if net.config.get("norm_before_residual") else x
            else:
                given = net.norm(f"{name}.input_layernorm", x)
            x = x + net.attend(f"{name}.self_attn", given)
            x = x + net.feed(f"{name}.mlp", net.norm(f"{name}.post_attention_layernorm", x))
        best = net.linear("lm_head", net.norm("norm", x[-number:])).argmax(-1)
        return tuple((best + _shift(net, best)).tolist())

    @torch.no_grad()
    def drafts_along(
        self, prompt: list[int], output: list[int], emitted: list[int], number: int
    ) -> list[tuple[int, ...]]:
        """What the head drafts before each step of an answer, whose steps emitted so many tokens; the first
        token is the prompt's own step's. It ends where the answer does."""
        found = []
        with _one_thread():
            ids = [*prompt, *output]
            _, states = self.target(ids)
            length = len(prompt) + 1
            for tokens in emitted:
                if length >= len(ids):
                    break
                found.append(self.drafts(ids[:length], states[: length - 1], number))
                length += tokens
        return found

    @torch.no_grad()
    def generate(self, prompt: list[int], tokens: int, number: int) -> tuple[list[int], list[Step]]:
        """``tokens`` greedy tokens after the prompt, and the steps that they took, so many drafts in each."""
        with _one_thread():
            return self._generated(prompt, tokens, number)

    def _generated(self, prompt: list[int], tokens: int, number: int) -> tuple[list[int], list[Step]]:
        following, states = self.target(prompt)
        ids, steps = [*prompt, following[-1]], []
        while len(ids) - len(prompt) < tokens:
            drafts = self.drafts(ids, states[: len(ids) - 1], number) if number else ()
            following, states = self.target([*ids, *drafts])
            wanted = following[len(ids) - 1 :]
            accepted = 0
            while accepted < number and drafts[accepted] == wanted[accepted]:
                accepted += 1
            steps.append(Step(drafts, accepted))
            ids += wanted[: accepted + 1]
        return ids[len(prompt) :][:tokens], steps
