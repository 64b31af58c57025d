"""What is compared: arms, as a user writes them. No input or output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.contract.table import legal_settings
from specctl.errors import BenchArgumentError, BenchInputError, TargetError

__all__ = ["Arm", "ArmKind", "baseline_of", "chosen_arms", "parse_arm", "setting_name"]

NO_PLUGIN = "runs without the specctl plugin"
_SETTING = re.compile(r"(\d{1,4})(?::(\d{1,4})(?::(\d{1,4}))?)?")


class ArmKind(StrEnum):
    AS_IS = "as it is"
    TABLE = "table"
    SETTING = "setting"
    AUTOTUNE = "autotune"


class Arm(BaseModel):
    """``server``: index of the target. ``setting``: of kind SETTING only; ``policy``: of AUTOTUNE only."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: ArmKind
    server: int = 0
    setting: Setting | None = None
    policy: str | None = None

    @property
    def is_constant(self) -> bool:
        return self.kind is not ArmKind.AUTOTUNE


def parse_arm(text: str) -> Arm:
    """``off``, ``table``, ``8``, ``5:3:16`` (drafts:top-k:width), ``autotune`` or ``autotune:POLICY``.

    Raises BenchArgumentError.
    """
    word, _, rest = text.strip().partition(":")
    if text.strip() == "off":
        return Arm(name="off", kind=ArmKind.SETTING, setting=Setting(num_speculative_tokens=0))
    if text.strip() == "table":
        return Arm(name="table", kind=ArmKind.TABLE)
    if word == "autotune":
        name = f"autotune {rest}" if rest else "autotune"
        return Arm(name=name, kind=ArmKind.AUTOTUNE, policy=rest or "balanced")
    found = _SETTING.fullmatch(text.strip())
    if found is None:
        raise BenchArgumentError(
            f"arm {text!r}: expected off, table, autotune, autotune:POLICY, a number of drafted tokens, or "
            "drafts:top-k:width"
        )
    number, topk, width = (None if part is None else int(part) for part in found.groups())
    try:
        setting = Setting(num_speculative_tokens=number or 0, tree_topk=topk or 1, verify_width_tokens=width)
    except ValueError as error:
        raise BenchArgumentError(f"arm {text!r}: {error}") from error
    return Arm(name=setting_name(setting), kind=ArmKind.SETTING, setting=setting)


def setting_name(setting: Setting) -> str:
    if not setting.num_speculative_tokens:
        return "off"
    if setting.tree_topk == 1 and setting.verify_width_tokens is None:
        return f"always {setting.num_speculative_tokens}"
    width = "" if setting.verify_width_tokens is None else f" width {setting.verify_width_tokens}"
    return f"always {setting.num_speculative_tokens} top-k {setting.tree_topk}{width}"


def chosen_arms(
    texts: Sequence[str],
    names: Sequence[str],
    capabilities: Sequence[Capabilities | None],
    *,
    is_search: bool = False,
) -> tuple[Arm, ...]:
    """The arms of all targets: those asked for on the first target that can be steered, every other target
    as it is.

    Args:
        texts: arms as the user wrote them; none: off, table and autotune.
        names, capabilities: of each target; no capabilities: it cannot be steered.
        is_search: one arm is enough, others are found.

    Raises TargetError for an arm that the server does not have, BenchInputError where there is nothing to
    compare.
    """
    steered = next((i for i, one in enumerate(capabilities) if one is not None and one.controllable), None)
    arms = []
    for i, name in enumerate(names):
        target_capabilities = capabilities[i]
        if i == steered and target_capabilities is not None:
            arms += [
                _checked(parse_arm(text), target_capabilities, i)
                for text in texts or ("off", "table", "autotune")
            ]
        else:
            arms.append(Arm(name=name, kind=ArmKind.AS_IS, server=i))
    if texts and steered is None:
        raise TargetError(
            f"arms {', '.join(texts)}: no target can be steered: {_why_not(names, capabilities)}"
        )
    if len(arms) < 2 and not is_search:
        raise BenchInputError(
            f"one arm alone is no comparison: name a second target, or arms of a server that specctl steers "
            f"({_why_not(names, capabilities)})"
        )
    doubled = {arm.name for arm in arms if sum(arm.name == other.name for other in arms) > 1}
    if doubled:
        raise BenchInputError(f"arms of the same name: {', '.join(sorted(doubled))}")
    return tuple(arms)


def baseline_of(text: str | None, arms: Sequence[Arm]) -> str:
    """The name of the arm that the others are compared with: ``text`` is its name, or what ``--arm`` takes;
    None: the first arm. Raises BenchArgumentError for any other."""
    if text is None:
        return arms[0].name
    names = [arm.name for arm in arms]
    if text in names:
        return text
    with suppress(BenchArgumentError):
        if (named := parse_arm(text).name) in names:
            return named
    raise BenchArgumentError(f"--baseline {text}: expected one of {', '.join(names)}")


def _checked(arm: Arm, capabilities: Capabilities, server: int) -> Arm:
    """With the width that the server has prepared, where the user named none of a tree."""
    arm = arm.model_copy(update={"server": server})
    if arm.setting is None:
        return arm
    legal = legal_settings(capabilities)
    wanted = (arm.setting.num_speculative_tokens, arm.setting.tree_topk, arm.setting.verify_width_tokens)
    for one in legal:
        if wanted[:2] != (one.num_speculative_tokens, one.tree_topk) and (wanted[0] or not _is_off(one)):
            continue
        if wanted[2] is None or wanted[2] == one.width_tokens:
            return arm if one.tree_topk == 1 else arm.model_copy(update={"setting": one})
    known = ", ".join(str(one.num_speculative_tokens) for one in legal if one.tree_topk == 1)
    trees = [f"{one.num_speculative_tokens}:{one.tree_topk}:{one.width_tokens}" for one in legal]
    raise TargetError(
        f"arm {arm.name!r}: the server has prepared {known or ', '.join(trees)}"
        f"{'' if all(one.tree_topk == 1 for one in legal) else '; as trees ' + ', '.join(trees)}"
    )


def _is_off(setting: Setting) -> bool:
    return setting.num_speculative_tokens == 0


def _why_not(names: Sequence[str], capabilities: Sequence[Capabilities | None]) -> str:
    return "; ".join(
        f"{name}: {NO_PLUGIN if one is None else one.why_not_controllable or 'steered'}"
        for name, one in zip(names, capabilities, strict=True)
    )
