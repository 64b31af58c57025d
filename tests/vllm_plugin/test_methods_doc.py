"""docs/methods.md names every option, with its default."""

import re
from pathlib import Path

import pytest
from specctl_vllm.options import SPECCTL_METHODS, ControlOptions, HeadOptions, HybridOptions, SuffixOptions

TEXT = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", TEXT, re.MULTILINE))


@pytest.mark.parametrize("options", [SuffixOptions, HeadOptions, HybridOptions, ControlOptions])
def test_every_option_stands_there_with_its_default(options):
    defaults = {name: field.default for name, field in options.model_fields.items()}
    words = {None: "none", True: "true", False: "false"}
    expected = {
        name: words[value] if value is None or isinstance(value, bool) else str(value)
        for name, value in defaults.items()
    }
    assert {name: ROWS.get(name) for name in expected} == expected


def test_every_method_and_every_option_of_vllm_that_is_taken_stands_there():
    own = {*SuffixOptions.model_fields, *HeadOptions.model_fields}
    taken = set().union(*SPECCTL_METHODS.values()) - own - {"method"}
    assert [name for name in sorted({*SPECCTL_METHODS, *taken}) if f"`{name}`" not in TEXT] == []
