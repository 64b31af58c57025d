"""Train a target on text, and draft heads on what the target writes itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.reference_models.heads import Eagle3, PEagle
from tools.reference_models.llama import Target

__all__ = [
    "MASK_TOKEN",
    "eagle3_length",
    "peagle_length",
    "train_eagle3",
    "train_peagle",
    "train_target",
    "written_texts",
]

MASK_TOKEN = 6
_EAGLE3_STEPS = 4
_PEAGLE_DRAFTS = 8
_PEAGLE_ANCHORS = 48


def pieces(tokens: Tensor, batch: int, length: int, seed: int) -> Iterator[Tensor]:
    """Without end: int64[batch, length + 1], from random places."""
    random = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(tokens) - length - 1, (batch,), generator=random)
        yield tokens[starts[:, None] + torch.arange(length + 1)]


def train_target(target: Target, tokens: Tensor, steps: int) -> float:
    """The loss at the end, nats a token. The last steps see long texts."""
    short, long = pieces(tokens, 8, 256, seed=1), pieces(tokens, 2, 1024, seed=2)

    def loss(step: int) -> Tensor:
        text = next(short if step < steps * 0.9 else long)
        logits, _ = target(text[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())

    return _trained(target, steps, loss, "target")


def written_texts(
    target: Target, tokens: Tensor, texts: int, length: int, seed: int = 3, greedy_share: float = 0.75
) -> Tensor:
    """int64[texts, length]: 32 tokens of text as the prompt, then the target's own; the others at T = 0.8."""
    batch = 64
    prompts = pieces(tokens, batch, 31, seed)
    temperatures = torch.full((batch,), 0.8)
    temperatures[: round(batch * greedy_share)] = 0.0
    found = [target.written(next(prompts), length - 32, temperatures) for _ in range(texts // batch)]
    return torch.cat(found).clone()


def train_eagle3(head: Eagle3, target: Target, texts: Tensor, kept: Tensor, steps: int) -> float:
    """kept: int64, the target's tokens that the head may draft."""
    at_random = torch.Generator().manual_seed(4)

    def loss(_step: int) -> Tensor:
        text = texts[torch.randint(len(texts), (4,), generator=at_random)]
        embedded, states, wanted = _seen(target, text)
        losses = []
        for step, logits in enumerate(head(embedded, states, _EAGLE3_STEPS)):
            likely = wanted[:, 1 + step :, kept].softmax(-1)
            losses.append(functional.cross_entropy(logits.flatten(0, 1), likely.flatten(0, 1)))
        return torch.stack(losses).mean()

    return _trained(head, steps, loss, "EAGLE-3 head")


def train_peagle(head: PEagle, target: Target, texts: Tensor, steps: int) -> float:
    at_random = torch.Generator().manual_seed(5)
    masked = target.model.embed_tokens.weight[MASK_TOKEN].detach()  # type: ignore[union-attr, index]
    depths = torch.arange(_PEAGLE_DRAFTS)

    def loss(_step: int) -> Tensor:
        text = texts[torch.randint(len(texts), (4,), generator=at_random)]
        embedded, states, wanted = _seen(target, text)
        places = torch.randperm(embedded.shape[1] - _PEAGLE_DRAFTS, generator=at_random)[:_PEAGLE_ANCHORS]
        logits = head(embedded, states, masked, places, _PEAGLE_DRAFTS)
        likely = wanted[:, places[:, None] + 1 + depths].softmax(-1)
        return functional.cross_entropy(logits.flatten(0, 2), likely.flatten(0, 2))

    return _trained(head, steps, loss, "P-EAGLE head")


@torch.no_grad()
def eagle3_length(head: Eagle3, target: Target, texts: Tensor, kept: Tensor) -> float:
    """Mean tokens a step of greedy drafts along greedy texts, int64[batch, tokens]."""
    embedded, states, _ = _seen(target, texts)
    drafts = [kept[logits.argmax(-1)] for logits in head(embedded, states, _EAGLE3_STEPS)]
    rows = texts.shape[1] - 1 - _EAGLE3_STEPS
    return _length(torch.stack([draft[:, :rows] for draft in drafts], dim=-1), texts)


@torch.no_grad()
def peagle_length(head: PEagle, target: Target, texts: Tensor) -> float:
    embedded, states, _ = _seen(target, texts)
    masked = target.model.embed_tokens.weight[MASK_TOKEN]  # type: ignore[union-attr, index]
    places = torch.arange(texts.shape[1] - 1 - _EAGLE3_STEPS)
    found = [
        head(embedded, states, masked, some, _EAGLE3_STEPS).argmax(-1)
        for some in places.split(_PEAGLE_ANCHORS)
    ]
    return _length(torch.cat(found, dim=1), texts)


def _length(drafts: Tensor, texts: Tensor) -> float:
    """drafts: int64[batch, rows, drafts], each row's of the tokens from the second after it on."""
    rows, most = drafts.shape[1:]
    truth = texts[:, 2:].unfold(1, most, 1)[:, :rows]
    return 1.0 + (drafts[:, : truth.shape[1]] == truth).cumprod(-1).sum(-1).float().mean().item()


def _seen(target: Target, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a head reads in its rows, and the target's logits after each token."""
    with torch.no_grad():
        logits, states = target(text)
        return target.model.embed_tokens(text[:, 1:]), states[:, :-1], logits  # type: ignore[operator]


def _trained(model: nn.Module, steps: int, loss_of: Callable[[int], Tensor], name: str) -> float:
    matrices, others = [], []
    for key, weight in model.named_parameters():
        is_matrix = weight.dim() == 2 and "embed" not in key and "lm_head" not in key
        (matrices if is_matrix else others).append(weight)
    optimizers = [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    started_s, mean = time.monotonic(), 0.0
    for step in range(steps):
        share = min(1.0, (step + 1) / 20, (steps - step) / (0.6 * steps))
        loss = loss_of(step)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad()
        mean = loss.item() if step == 0 else 0.95 * mean + 0.05 * loss.item()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            print(
                f"{name}: step {step + 1} of {steps}, {mean:.3f} nats, {time.monotonic() - started_s:.0f} s",
                flush=True,
            )
    return mean
