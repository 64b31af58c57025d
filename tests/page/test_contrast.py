"""The page's colours meet WCAG 2.2 AA, in light and in dark."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = (files("specctl.page") / "assets" / "page.css").read_text()
TEXT_MIN = 4.5
"""Success criterion 1.4.3, for text of any size."""
GRAPHICS_MIN = 3.0
"""1.4.11, for lines of charts and edges of controls."""
TEXTS = ("text", "quiet", "link", "good", "bad", "warn")


def colours(scheme: str) -> dict[str, str]:
    light, dark = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    found = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", light))
    return found | (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", dark)) if scheme == "dark" else {})


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stand_out(scheme: str) -> None:
    known = colours(scheme)
    for ground in ("page", "panel"):
        for name in TEXTS:
            assert contrast(known[name], known[ground]) >= TEXT_MIN, f"{name} on {ground}"
        for name in ("edge", "now", "off", "fill"):
            assert contrast(known[name], known[ground]) >= GRAPHICS_MIN, f"{name} on {ground}"
    assert contrast(known["button-text"], known["button"]) >= TEXT_MIN


def test_every_colour_is_one_of_these() -> None:
    rules = re.sub(r":root \{.*?\}", "", CSS, flags=re.DOTALL)
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b(?![^{]*\{)", rules)
    assert set(re.findall(r"var\(--([a-z-]+)\)", CSS)) <= colours("light").keys()
