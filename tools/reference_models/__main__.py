"""Train and write the reference models.

    python -m tools.reference_models FOLDER

FOLDER holds reference-target, reference-eagle3 and reference-peagle afterwards, in the formats of their
published kinds (bfloat16 safetensors). About 4 minutes on 2 cores: enough for heads whose drafts are accepted
well over chance. ``make test`` does so once.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from tools.reference_models.heads import Eagle3, PEagle
from tools.reference_models.llama import SHAPE, Target
from tools.reference_models.text import SPECIAL, documents, trained_tokenizer
from tools.reference_models.training import (
    MASK_TOKEN,
    eagle3_length,
    peagle_length,
    train_eagle3,
    train_peagle,
    train_target,
    written_texts,
)

CORPUS_CHARS = 3_000_000
LENGTH_MIN = 1.5
CERTAINTY = 1.8
"""Logits are multiplied by it: a target that learnt little is less certain of its tokens than served ones."""
CHAT_TEMPLATE = (
    "{{ '<|bos|>' }}{% for message in messages %}{% if message['content'] is string %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|>' }}{% for part in message['content'] %}"
    "{{ part['text'] }}{% endfor %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def main(folder: Path) -> None:
    started_s = time.monotonic()
    torch.manual_seed(0)
    texts = documents(CORPUS_CHARS)
    tokenizer = trained_tokenizer(texts, SHAPE.vocab_size)
    tokens = torch.tensor([token for one in tokenizer.encode_batch(texts) for token in one.ids])
    print(f"text: {len(tokens)} tokens, {time.monotonic() - started_s:.0f} s", flush=True)

    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    target = Target()
    train_target(target, tokens, steps=150)
    target.model.norm.weight.data *= CERTAINTY  # type: ignore[union-attr, operator]
    write(part / "reference-target", target.state_dict(), tokenizer, {"tie_word_embeddings": True})
    # Heads are to read what the engine computes from the written weights.
    target.load_state_dict({name: value.bfloat16() for name, value in target.state_dict().items()})
    target.requires_grad_(False)

    texts_written = written_texts(target, tokens, texts=384, length=256)
    print(
        f"written by the target: {texts_written.numel()} tokens, {time.monotonic() - started_s:.0f} s",
        flush=True,
    )
    held_out = written_texts(target, tokens, texts=64, length=256, seed=6, greedy_share=1.0)[:16]
    kept = most_frequent(texts_written, tokens, SHAPE.draft_vocab_size)

    eagle3 = Eagle3(SHAPE)
    eagle3.fc.weight.data *= 0.5
    eagle3.lm_head.weight.data = target.model.embed_tokens.weight[kept].clone()  # type: ignore[union-attr, index]
    train_eagle3(eagle3, target, texts_written, kept, steps=400)
    said("EAGLE-3", eagle3_length(eagle3, target, held_out, kept))
    may_draft = torch.zeros(SHAPE.vocab_size, dtype=torch.bool)
    may_draft[kept] = True
    mapped = {"d2t": kept - torch.arange(len(kept)), "t2d": may_draft}
    write(part / "reference-eagle3", eagle3.state_dict() | mapped, tokenizer, head_config(1, len(kept)))

    peagle = PEagle(SHAPE)
    peagle.lm_head.weight.data = target.model.embed_tokens.weight.clone()  # type: ignore[union-attr, operator]
    train_peagle(peagle, target, texts_written, steps=400)
    said("P-EAGLE", peagle_length(peagle, target, held_out))
    config = head_config(len(peagle.layers), SHAPE.vocab_size) | {"ptd_token_id": MASK_TOKEN}
    write(part / "reference-peagle", peagle.state_dict(), tokenizer, config)
    for path in part.iterdir():
        shutil.rmtree(folder / path.name, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / path.name)
    part.rmdir()
    print(f"reference models: {time.monotonic() - started_s:.0f} s", flush=True)


def said(head: str, length: float) -> None:
    """Raises RuntimeError for a head that is hardly over chance: tests would prove nothing with it."""
    print(f"{head}: {length:.2f} tokens a step on the target's own text", flush=True)
    if length < LENGTH_MIN:
        raise RuntimeError(f"{head}: expected at least {LENGTH_MIN} tokens a step, got {length:.2f}")


def most_frequent(texts: Tensor, tokens: Tensor, count: int) -> Tensor:
    """int64[count], ascending: the tokens that the target writes most, then those of the corpus."""
    times = torch.bincount(texts.flatten(), minlength=SHAPE.vocab_size) * len(tokens)
    times += torch.bincount(tokens, minlength=SHAPE.vocab_size)
    return times.topk(count).indices.sort().values


def head_config(layers: int, draft_vocab_size: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": layers,
        "draft_vocab_size": draft_vocab_size,
        "tie_word_embeddings": False,
    }


def write(folder: Path, weights: dict[str, Tensor], tokenizer: Tokenizer, more: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    stored = {
        name: value.bfloat16().contiguous() if value.is_floating_point() else value
        for name, value in weights.items()
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    shape = asdict(SHAPE)
    shape.pop("draft_vocab_size")
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", **shape, "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "initializer_range": 0.02, **tokens,
        "torch_dtype": "bfloat16", "use_cache": True, **more,
    }  # fmt: skip
    put(folder / "config.json", config)
    put(folder / "generation_config.json", {**tokens, "do_sample": True, "temperature": 1.0})
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|end|>",
        "pad_token": "<|pad|>", "additional_special_tokens": SPECIAL[3:],
        "model_max_length": SHAPE.max_position_embeddings, "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    put(folder / "tokenizer_config.json", described)


def put(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
