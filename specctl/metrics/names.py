"""Every metric of specctl, once: name, help, labels. ``docs/metrics.md`` is made from this file.

``specctl_*`` are the daemon's, in a registry of its own; ``specctl_engine_*`` are the plugin's, on the
engine's own /metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DAEMON", "ENGINE", "Metric"]


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """Equal to itself alone, so that it is a quick key. A name that ends with ``_total`` is a counter's, one
    that ends with ``_tick_seconds`` a summary's; all others are gauges'."""

    name: str
    help: str
    labels: tuple[str, ...] = ("target",)

    @property
    def type(self) -> str:
        if self.name.endswith("_total"):
            return "counter"
        return "summary" if self.name == "specctl_tick_seconds" else "gauge"


_BY_BUCKET = ("target", "decode_batch_to")
BUILD_INFO = Metric("specctl_build_info", "1; the label says which version of specctl runs.", ("version",))
TARGETS = Metric("specctl_watched_targets", "Servers that this daemon polls.", ())
POLICY_VALID = Metric(
    "specctl_policy_valid",
    "1: every policy file on disk is the one in force; 0: at least one is refused.",
    (),
)
TARGET_INFO = Metric(
    "specctl_target_info",
    "1 for each server with the plugin. model_name and instance are as in the metrics of the engine itself.",
    ("target", "instance", "engine", "version", "model_name", "method"),
)
TARGET_UP = Metric("specctl_target_up", "1: the last poll of the server succeeded; 0: it failed.")
LAST_POLL = Metric("specctl_last_poll_timestamp_seconds", "Unix time of the last poll that succeeded.")
TICK_SECONDS = Metric(
    "specctl_tick_seconds", "Seconds that one poll of a server took, with its decision and its change."
)
AUDIT_LOST = Metric("specctl_audit_lost_records_total", "Records that the audit log could not take.", ())
ERRORS = Metric("specctl_errors_total", "Failed polls and refused tables, by kind.", ("target", "kind"))
PLUGIN_FAILURES = Metric(
    "specctl_plugin_failures",
    "Calls of the plugin's own code that raised since the engine's start. Each cost one step its drafts.",
    ("target", "entry"),
)
LEASE_HELD = Metric(
    "specctl_lease_held", "1: this daemon holds the lease on the server's table; 0: it does not."
)
FROZEN = Metric("specctl_frozen", "1: the server's table is held and not changed; 0: it may change.")
DECISIONS = Metric(
    "specctl_decisions_total",
    "Decisions by their reason. Each poll of a server makes one.",
    ("target", "reason"),
)
CHANGES = Metric(
    "specctl_table_changes_total", "Tables put in force. Renewals and changed samples are not counted."
)
CURRENT_TOKENS = Metric(
    "specctl_current_num_speculative_tokens",
    "Most drafted tokens of a request and step, in the busiest decode-batch bucket; 0 is off.",
)
NUM_SPECULATIVE_TOKENS = Metric(
    "specctl_num_speculative_tokens",
    "Most drafted tokens of a request and step by the table in force, by the bucket's last batch; 0 is off.",
    _BY_BUCKET,
)
TREE_TOPK = Metric(
    "specctl_tree_topk", "Branches at each depth of a draft in the table in force; 1 is a chain.", _BY_BUCKET
)
VERIFY_WIDTH = Metric(
    "specctl_verify_width_tokens",
    "Positions that the target model scores for one request under the table in force.",
    _BY_BUCKET,
)
MIN_TOKEN_PROB = Metric(
    "specctl_min_token_prob_ratio",
    "Drafted tokens with a lower probability are not verified. Missing: as the server is configured.",
    _BY_BUCKET,
)
ENGINE_TOKENS = Metric("specctl_emitted_tokens_total", "Tokens that the server emitted while it was polled.")
ACCEPTANCE_RATE = Metric(
    "specctl_acceptance_rate_ratio",
    "Accepted / drafted tokens of the last 30 s. Missing: nothing was drafted.",
)
ACCEPTANCE_LENGTH = Metric(
    "specctl_acceptance_length_tokens",
    "Mean tokens that a request emitted in a step that could draft, over the last 30 s; 1 to drafts + 1.",
)
EFFICIENCY = Metric(
    "specctl_verify_efficiency_ratio",
    "Emitted / verified tokens of the steps that could draft, over the last 30 s; 1: every one was accepted.",
)
ACCEPTANCE_SURVIVAL = Metric(
    "specctl_acceptance_survival_ratio",
    "Estimated share of drafts whose first tokens, up to the position, are all accepted.",
    ("target", "position"),
)
PREDICTED_TOKENS = Metric(
    "specctl_predicted_tokens_per_second",
    "Predicted tokens per second of step time in the busiest bucket, for the chosen setting, the present "
    "one and off.",
    ("target", "setting"),
)
SPEEDUP_OFF = Metric(
    "specctl_speedup_vs_off",
    "Tokens per second of step time / predicted ones with speculation off, half-life 10 min; over 1: faster.",
)
SPEEDUP_BEST_STATIC = Metric(
    "specctl_speedup_vs_best_static",
    "Tokens per second of step time / predicted ones with the one setting that was best throughout.",
)
BEST_STATIC = Metric(
    "specctl_best_static_num_speculative_tokens",
    "Drafted tokens of the one setting that would have been best throughout; 0 is off.",
)
SAMPLE_LOSS = Metric(
    "specctl_sample_loss_ratio", "Share of the tokens that sampled steps are predicted to have cost."
)
RESTART_ADVISED = Metric(
    "specctl_restart_advised", "1: a restart without speculation is advised; 0: it is not."
)
ADAPTIVITY_ON = Metric(
    "specctl_adaptivity_on",
    "1: the engine decides by itself how much is drafted or verified; 0: it could, and does not.",
    ("target", "adaptivity"),
)
ADAPTIVITY_TOKENS = Metric(
    "specctl_adaptivity_tokens",
    "Mean drafted tokens of a request and step that the engine let through since the last poll.",
    ("target", "adaptivity"),
)
UNSOUND = Metric(
    "specctl_unsound",
    "1 while the acceptance is such as sound drafts do not have, by its likely cause. Missing: none is seen.",
    ("target", "cause"),
)
COST = Metric(
    "specctl_predicted_cost_per_million_tokens",
    "Predicted cost of a million tokens in the fullest bucket, in the currency of a policy of kind cost.",
)
DAEMON = tuple(value for value in list(vars().values()) if isinstance(value, Metric))

_OF_MODEL = ("model_name",)
_BY_SETTING = ("model_name", "num_speculative_tokens", "tree_topk")
ENGINE_INFO = Metric(
    "specctl_engine_info",
    "1; the labels say what the plugin runs in.",
    ("model_name", "engine", "version", "method", "plugin_version"),
)
ENGINE_ANSWERED = Metric(
    "specctl_engine_answered",
    "1: the scheduler answered the plugin's question in time; 0: what follows is missing.",
    (),
)
ENGINE_TABLE_VERSION = Metric(
    "specctl_engine_table_version", "Version of the table in force; 0 is the start table.", _OF_MODEL
)
ENGINE_TABLE_STATE = Metric(
    "specctl_engine_table_state",
    "1 for the state that holds: start, live, or fallback after a lease ran out.",
    ("model_name", "state"),
)
ENGINE_TABLE_AGE = Metric(
    "specctl_engine_table_age_seconds", "Seconds since the table in force was applied.", _OF_MODEL
)
ENGINE_LEASE = Metric(
    "specctl_engine_lease_remaining_seconds",
    "Seconds until the lease on the table ends. Missing: there is no lease.",
    _OF_MODEL,
)
ENGINE_TOKENS_NOW = Metric(
    "specctl_engine_num_speculative_tokens",
    "Most drafted tokens of a request in the last step; 0 is off.",
    _OF_MODEL,
)
ENGINE_STEPS = Metric(
    "specctl_engine_steps_total", "Steps with decoding requests, by the setting they ran with.", _BY_SETTING
)
ENGINE_SAMPLED_STEPS = Metric(
    "specctl_engine_sampled_steps_total",
    "Of these: steps that sampled another setting than the row's.",
    _BY_SETTING,
)
ENGINE_STEP_SECONDS = Metric("specctl_engine_step_seconds_total", "Seconds of these steps.", _BY_SETTING)
ENGINE_EMITTED = Metric("specctl_engine_emitted_tokens_total", "Tokens emitted by these steps.", _BY_SETTING)
ENGINE_DRAFTED = Metric("specctl_engine_drafted_tokens_total", "Tokens drafted in these steps.", _BY_SETTING)
ENGINE_ACCEPTED = Metric(
    "specctl_engine_accepted_tokens_total", "Drafted tokens that these steps accepted.", _BY_SETTING
)
ENGINE_VERIFIED = Metric(
    "specctl_engine_verified_batches_total",
    "Batches of drafts by who verified them (specctl or the engine), and why the engine did.",
    ("model_name", "by", "reason"),
)
ENGINE_FAILURES = Metric(
    "specctl_engine_plugin_failures_total",
    "Calls of the plugin's own code that raised, by entry. Each cost one step its drafts; after three "
    "nothing is drafted.",
    ("model_name", "entry"),
)
ENGINE_GUARDED = Metric(
    "specctl_engine_guarded_steps_total",
    "Steps without drafts because a sampled request could not be verified soundly.",
    _OF_MODEL,
)
ENGINE_SELF_CHECKS = Metric(
    "specctl_engine_self_checks_total",
    "Greedy answers decoded again without drafts: identical, tie (they part by rounding) or differing.",
    ("model_name", "result"),
)
ENGINE_STEERING = Metric(
    "specctl_engine_steering_seconds_total",
    "Seconds spent in the plugin's own part of the scheduler.",
    _OF_MODEL,
)
ENGINE_FRONT_END = Metric(
    "specctl_engine_front_end_waiting_pieces",
    "What one request emitted in one step is a piece: those that the HTTP server has not taken up yet. "
    "vLLM only.",
    _OF_MODEL,
)
ENGINE = tuple(
    value
    for value in list(vars().values())
    if isinstance(value, Metric) and value.name.startswith("specctl_engine_")
)
