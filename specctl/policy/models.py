"""The kinds of policy: a discriminated union on ``kind``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter

from specctl.policy.by_hand import FixedPolicy, OffPolicy, Threshold, ThresholdsPolicy
from specctl.policy.cost import CostPolicy
from specctl.policy.goodput import GoodputPolicy
from specctl.policy.slo import SloPolicy

__all__ = [
    "KINDS",
    "POLICY_ADAPTER",
    "AnyPolicy",
    "CostPolicy",
    "FixedPolicy",
    "GoodputPolicy",
    "OffPolicy",
    "SloPolicy",
    "Threshold",
    "ThresholdsPolicy",
]

AnyPolicy = GoodputPolicy | SloPolicy | CostPolicy | ThresholdsPolicy | FixedPolicy | OffPolicy
POLICY_ADAPTER: TypeAdapter[AnyPolicy] = TypeAdapter(Annotated[AnyPolicy, Field(discriminator="kind")])
KINDS: dict[str, type[BaseModel]] = {
    "goodput": GoodputPolicy,
    "slo": SloPolicy,
    "cost": CostPolicy,
    "thresholds": ThresholdsPolicy,
    "fixed": FixedPolicy,
    "off": OffPolicy,
}
