"""Make the extra tokens of a model of benchmarks.gpu.widen improbable, so that it can be sampled from.

    python -m benchmarks.gpu.quiet_tail fit SMALL --prompts FILE --row ROW.json
    python -m benchmarks.gpu.quiet_tail apply WIDE --row ROW.json

Rows of zeros give a hundred thousand extra tokens the logit 0: together as likely as the small vocabulary,
and all within a nucleus of 0.95. ``fit`` finds the row that gives about LOGIT after every position of the
prompts (least squares over the small model's last hidden states, half of them held out) and tells how much
mass the extra tokens would have; ``apply`` writes it in place of the zeros. Answers of the small vocabulary
keep their ratios.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LOGIT = -15.0
_FILE = "model-output.safetensors"
_HEAD = "lm_head.weight"
_PROMPTS = 48
_TOKENS = 320
_EXTRA = 112_000
_TEMPERATURE = 0.8


def fit(small: Path, prompts: list[list[int]]) -> list[float]:
    """float[hidden], in the small model's basis. RuntimeError: the extra tokens would not be improbable."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).eval()
    with torch.no_grad():
        states = torch.cat(
            [model.model(torch.tensor([ids[:_TOKENS]])).last_hidden_state[0] for ids in prompts[:_PROMPTS]]
        )
        seen, held_out = states[::2], states[1::2]
        row = torch.linalg.lstsq(seen, torch.full((len(seen), 1), LOGIT)).solution[:, 0]
        own = torch.logsumexp(model.lm_head(held_out) / _TEMPERATURE, 1)
        mass = _EXTRA * torch.exp(held_out @ row / _TEMPERATURE - own)
    worst = float(mass.quantile(0.999))
    print(
        f"mass of the extra tokens at a temperature of {_TEMPERATURE}: {worst:.1e} at one position of 1,000"
    )
    if worst > 1e-3:
        raise RuntimeError(f"expected under 1e-3, got {worst:.1e}")
    return [round(value, 5) for value in row.tolist()]


def apply(wide: Path, row: list[float]) -> None:
    """ValueError: the folder is no widened target, or its extra rows are not zeros."""
    tensors = load_file(wide / _FILE)
    head = tensors[_HEAD]
    extra = head.abs().sum(dim=1) == 0
    if head.shape[1] <= len(row) or not extra.any():
        raise ValueError(f"expected rows of zeros wider than {len(row)}, got {list(head.shape)}")
    quiet = torch.zeros(head.shape[1], dtype=head.dtype)
    quiet[: len(row)] = torch.tensor(row, dtype=head.dtype)
    head[extra] = quiet
    save_file(tensors, wide / _FILE, metadata={"format": "pt"})
    print(f"{int(extra.sum())} extra tokens are improbable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("fit", "apply"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        command.add_argument("--row", type=Path, required=True)
        if name == "fit":
            command.add_argument("--prompts", type=Path, required=True, help="JSON list of token ids")
    given = parser.parse_args()
    if given.command == "fit":
        row = fit(given.folder, json.loads(given.prompts.read_text(encoding="utf-8")))
        given.row.write_text(json.dumps(row), encoding="utf-8")
    else:
        apply(given.folder, json.loads(given.row.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
