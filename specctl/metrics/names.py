"""Every metric that the daemon serves, once: name, help, labels."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ACCEPTANCE_SURVIVAL",
    "BEST_STATIC",
    "CHANGES",
    "COST",
    "DECISIONS",
    "ENGINE_TOKENS",
    "ERRORS",
    "FROZEN",
    "LEASE_HELD",
    "MIN_TOKEN_PROB",
    "NUM_SPECULATIVE_TOKENS",
    "PLUGIN_FAILURES",
    "POLICY_VALID",
    "PREDICTED_TOKENS",
    "RESTART_ADVISED",
    "SAMPLE_LOSS",
    "SPEEDUP_BEST_STATIC",
    "SPEEDUP_OFF",
    "TARGETS",
    "TARGET_UP",
    "TICK_SECONDS",
    "TREE_TOPK",
    "VERIFY_WIDTH",
    "Metric",
]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    help: str
    labels: tuple[str, ...] = ("target",)


_BY_BUCKET = ("target", "decode_batch_to")
DECISIONS = Metric("specctl_decisions_total", "Decisions, one a poll, by their reason.", ("target", "reason"))
CHANGES = Metric("specctl_table_changes_total", "Tables put in force; renewals and samples are not counted.")
ERRORS = Metric("specctl_errors_total", "Failed polls and refused tables.", ("target", "kind"))
TARGET_UP = Metric("specctl_target_up", "1: the last poll of the target succeeded; 0: it did not.")
PLUGIN_FAILURES = Metric(
    "specctl_plugin_failures",
    "Calls of the plugin's own code that raised since the engine's start; each cost one step its drafts.",
    ("target", "entry"),
)
LEASE_HELD = Metric("specctl_lease_held", "1: this daemon holds the lease on the target's table; 0: not.")
NUM_SPECULATIVE_TOKENS = Metric(
    "specctl_num_speculative_tokens",
    "Most drafted tokens in a row of the table in force, by the last decode batch of the bucket; 0 is off.",
    _BY_BUCKET,
)
TREE_TOPK = Metric("specctl_tree_topk", "Branches a depth of the table in force; 1 is a chain.", _BY_BUCKET)
VERIFY_WIDTH = Metric(
    "specctl_verify_width_tokens",
    "Positions that the target scores for a request under the table in force.",
    _BY_BUCKET,
)
MIN_TOKEN_PROB = Metric(
    "specctl_min_token_prob_ratio",
    "Least probability of a drafted token that is verified; as the server is configured where missing.",
    _BY_BUCKET,
)
PREDICTED_TOKENS = Metric(
    "specctl_predicted_tokens_per_second",
    "Predicted tokens per second of the busy bucket: chosen, present and off.",
    ("target", "setting"),
)
ENGINE_TOKENS = Metric("specctl_emitted_tokens_total", "Tokens emitted by the target while watched.")
ACCEPTANCE_SURVIVAL = Metric(
    "specctl_acceptance_survival_ratio",
    "Share of drafts whose first tokens, up to the position, were all accepted.",
    ("target", "position"),
)
TICK_SECONDS = Metric("specctl_tick_seconds", "Seconds of one poll, decision and change.")
POLICY_VALID = Metric("specctl_policy_valid", "1: every policy file on disk is the one in force; 0: not.", ())
TARGETS = Metric("specctl_watched_targets", "Servers that are watched or steered.", ())
FROZEN = Metric("specctl_frozen", "1: the target's table is held and not changed; 0: not.")
SPEEDUP_OFF = Metric(
    "specctl_speedup_vs_off",
    "Tokens per second of step time against speculation off, of the last minutes; 1.5: half as many again.",
)
SPEEDUP_BEST_STATIC = Metric(
    "specctl_speedup_vs_best_static",
    "The same against the one setting that would have been best all the time.",
)
BEST_STATIC = Metric(
    "specctl_best_static_num_speculative_tokens", "Drafted tokens of that setting; 0 is off."
)
SAMPLE_LOSS = Metric(
    "specctl_sample_loss_ratio", "Share of the tokens that sampled steps are expected to have cost."
)
RESTART_ADVISED = Metric("specctl_restart_advised", "1: a restart without speculation is advised; 0: not.")
COST = Metric(
    "specctl_predicted_cost_per_million_tokens",
    "Predicted cost of a million tokens in the fullest bucket, in the currency of a policy of kind cost.",
)
