"""Contrast of the page: text 4.5:1, shapes 3:1, on the page and on a card, light and dark."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

TEXT = ("ink", "soft")
SHAPES = ("bar", "ours", "good", "bad", "warn", "s0", "s1", "s2", "s3", "s4", "s5")


def palettes() -> list[dict[str, str]]:
    style = (files("specctl.bench") / "page.html").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    return [dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", block)) for block in blocks]


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_contrast(palette: dict[str, str]) -> None:
    for ground in ("paper", "card"):
        for name in TEXT:
            assert contrast(palette[name], palette[ground]) >= 4.5, (name, ground)
        for name in SHAPES:
            assert contrast(palette[name], palette[ground]) >= 3.0, (name, ground)
