// Elements and numbers. Text is always set as text, never as HTML.

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const UNKNOWN = "–";

export function number(value, digits) {
  if (value === undefined || value === null) return UNKNOWN;
  const shown = digits ?? (Math.abs(value) < 10 ? 1 : 0);
  return value.toLocaleString("en", { minimumFractionDigits: shown, maximumFractionDigits: shown });
}

export function percent(value) {
  return value === undefined || value === null ? UNKNOWN : `${Math.round(100 * value)} %`;
}

export function times(value) {
  return value === undefined || value === null ? UNKNOWN : `${number(value, 2)}×`;
}

export function seconds(value) {
  if (value < 90) return `${Math.max(Math.round(value), 0)} s`;
  return value < 5400 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

// What to show of a server's state: a word, and how it is coloured.
export function stateOf(server) {
  if (server.is_up === undefined) return ["not polled yet", "quiet"];
  if (!server.is_up) return ["unreachable", "bad"];
  const set = { freeze: "frozen", off: "off by hand", dry_run: "dry run", table: "table by hand" }[server.mode];
  if (set) return [set, "warn"];
  if (server.is_frozen) return ["frozen", "warn"];
  if (server.table_state === undefined) return ["watched", "quiet"];
  if (server.table_state === "fallback") return ["fallback", "warn"];
  return server.lease_held ? ["steered", "good"] : ["watched", "quiet"];
}

export const REASONS = {
  gain: "another setting gains",
  off_no_gain: "drafting does not pay",
  no_better: "nothing is better",
  break_even: "break-even of a drafted token",
  set_by_policy: "set by the policy",
  dwell: "too soon after the last change",
  few_samples: "too few samples",
  cost_unknown: "step cost not known yet",
  latency_bound: "latency bound",
  canary_wait: "waits for a canary",
  rollback: "rolled back",
  unsound: "drafts are not sound",
  supervised: "left to the engine",
  frozen: "frozen",
  idle: "no traffic",
  not_measured: "table not read",
  not_possible: "server cannot do it",
  not_controllable: "server refuses tables",
  recommendation: "recommendation only",
};

export const reason = (name) => REASONS[name] ?? name ?? UNKNOWN;
