"""Text that may be shared: source and documentation of Python's standard library, calls of its functions as
JSON, and a tokenizer of it all."""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

__all__ = ["SPECIAL", "documents", "trained_tokenizer"]

SPECIAL = ["<|pad|>", "<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|mask|>"]
_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "__pycache__", "config"}
_FILE_CHARS_MAX = 60_000


def documents(chars_max: int, seed: int = 0) -> list[str]:
    """Modules and, as chats, what is documented in them and how it is called; the same order for the same
    Python."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(library.rglob("*.py")) if not _LEFT_OUT & set(path.parent.parts)]
    random.Random(seed).shuffle(files)
    found: list[str] = []
    chars = 0
    for path in files:
        source = path.read_text(encoding="utf-8", errors="ignore")[:_FILE_CHARS_MAX]
        for text in (f"<|bos|>{source}<|end|>", *_chats(path)):
            found.append(text)
            chars += len(text)
        if chars > chars_max:
            break
    random.Random(seed).shuffle(found)
    return found


def _chats(path: Path) -> Iterator[str]:
    """A question for each documented function or class, and its documentation as the answer; and a call of
    each function with arguments."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (docstring := ast.get_docstring(node)):
            yield f"<|bos|><|user|>What does {node.name} do?<|end|><|assistant|>{docstring}<|end|>"
        if isinstance(node, ast.FunctionDef) and node.args.args:
            yield f"<|bos|><|user|>Call {node.name}.<|end|><|assistant|>{_call(node)}<|end|>"


def _call(function: ast.FunctionDef) -> str:
    """JSON with the names of its arguments, and their defaults where it has some."""
    names = [one.arg for one in function.args.args]
    defaults = [getattr(one, "value", None) for one in function.args.defaults]
    given = dict(zip(reversed(names), reversed(defaults), strict=False))
    values = {name: given.get(name, f"{name} of {function.name}") for name in names if name != "self"}
    return json.dumps({"name": function.name, "arguments": values}, default=str)


def trained_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE; no text is unknown to it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    plain = (text.replace("<|bos|>", "").replace("<|end|>", "") for text in texts)
    tokenizer.train_from_iterator(plain, trainer)
    return tokenizer
