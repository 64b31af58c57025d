"""MkDocs hook: the site's first page is the README, and links out of ``docs/`` lead to the repository.

Where ``repo_url`` is not set such a link becomes plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]+)(#[^)]*)?\)")
_INTO_DOCS = re.compile(r"\]\(docs/")


def on_files(files: Files, config: Any) -> Files:
    """The README is kept once, at the root."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    inside = _INTO_DOCS.sub("](", readme)
    outside = re.sub(
        r"\]\((?!https?:|#)(?=(CONTRIBUTING|CHANGELOG|LICENSE|policies/|benchmarks/|deploy/))",
        "](../",
        inside,
    )
    files.append(File.generated(config, "index.md", content=outside))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    def outside(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        if path == "README.md":
            return f"[{text}](index.md{anchor})"
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})"
        return text

    return _LINK.sub(outside, markdown)
