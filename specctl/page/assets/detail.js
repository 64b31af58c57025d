// One server: figures, charts, buckets, decisions, events. Built once, then its parts are filled anew.

import { bars, lines } from "./chart.js";
import * as controls from "./controls.js";
import { el, number, percent, reason, seconds, setText, stateOf, times, UNKNOWN } from "./dom.js";

const FACTS = [
  ["Load", (s) => `${number(s.running, 0)} running`, (s) => `${number(s.waiting, 0)} waiting, KV cache ${percent(s.kv_cache_used_ratio)}`],
  ["Setting", (s) => s.setting ?? UNKNOWN, () => "busiest decode batch"],
  ["Tokens/s of step time", (s) => number(s.decode_tokens_per_s), (s) => `${number(s.off_tokens_per_s)} predicted if off`],
  ["Speedup over off", (s) => times(s.speedup_vs_off), () => "over about 10 minutes"],
  ["Accepted", (s) => percent(s.acceptance_rate), (s) => `${number(s.acceptance_length, 2)} tokens a step`],
  ["Efficiency", (s) => percent(s.efficiency), () => "emitted / verified"],
  ["Emitted", (s) => number(s.emitted_tokens_per_s), () => "tokens/s of the clock"],
  ["Lease", leaseWords, (s) => (s.table_owner ? `table ${s.table_version} by ${s.table_owner}` : `table ${s.table_version ?? UNKNOWN}`)],
];

function leaseWords(server, now) {
  if (server.lease_ends_s === undefined) return server.table_state ?? "none";
  return `${server.lease_held ? "held" : "another's"}, ${seconds(server.lease_ends_s - now)}`;
}

let shown = null;

export function close() {
  shown = null;
}

// section: where; server: the detail; daemon: whose.
export function show(section, server, daemon) {
  if (shown?.target !== server.target || shown?.canControl !== daemon.can_control) build(section, server, daemon);
  const [word, shade] = stateOf(server);
  setText(shown.state, word);
  shown.state.className = shade;
  const about = [server.engine, server.engine_version].filter(Boolean).join(" ");
  setText(shown.about, [server.model, server.method, about].filter(Boolean).join(", "));
  FACTS.forEach(([, value, note], i) => {
    setText(shown.facts[i].value, value(server, daemon.time_s));
    setText(shown.facts[i].note, note(server));
  });
  notices(server);
  charts(server);
  fillBuckets(server);
  fillLog(shown.decisions, server.decisions, "No decision yet.");
  fillLog(shown.events, server.events, "Nothing yet.");
  shown.update?.(server);
}

function panel(title, ...children) {
  return el("section", { class: "panel" }, el("h3", {}, title), ...children);
}

function key(...words) {
  return el("p", { class: "key" }, ...words.map((word, i) => el("span", { class: i ? "b" : null }, word)));
}

function build(section, server, daemon) {
  const facts = FACTS.map(([name]) => {
    const value = el("span");
    const note = el("span", { class: "note" });
    return { value, note, node: el("div", { class: "fact" }, el("dt", {}, name), el("dd", {}, value, note)) };
  });
  const part = () => el("div");
  shown = {
    target: server.target, canControl: daemon.can_control, facts,
    state: el("span"), about: el("span", { class: "quiet" }), notices: part(), speed: part(), load: part(),
    drafts: part(), acceptance: part(), buckets: el("tbody"), decisions: log("Decisions"), events: log("Events"),
  };
  const made = daemon.can_control ? controls.build(server) : null;
  shown.update = made?.update;
  const off = el("p", { class: "quiet" }, "Changes are turned off: the daemon has no control token (--page-token-file).");
  section.replaceChildren(
    el("div", { class: "bar" }, el("h2", { id: "detail-title" }, server.instance), shown.state, shown.about,
      el("a", { href: "#/" }, "All servers")),
    shown.notices,
    el("p", { class: "quiet" }, `Rates and acceptance are of the last ${server.window_s} s.`),
    el("dl", { class: "facts" }, ...facts.map((fact) => fact.node)),
    el("div", { class: "panels" },
      panel("Tokens per second of step time", key("measured", "predicted with speculation off"), shown.speed),
      panel("Requests", key("running", "waiting"), shown.load),
      panel("Drafted tokens in the busiest decode batch", shown.drafts),
      panel("Accepted by position", shown.acceptance, el("p", { class: "quiet" }, "Share of drafts whose first tokens, up to the position, were all accepted.")),
      el("section", { class: "panel wide" }, el("h3", { id: "buckets-title" }, "Setting by decode batch"), table(shown.buckets)),
      panel("Decisions", shown.decisions), panel("Events", shown.events),
      el("section", { class: "panel wide" }, el("h3", {}, "Control"), made ? made.node : off)),
  );
}

function log(name) {
  return el("div", { class: "log", tabindex: "0", role: "region", "aria-label": name });
}

function table(body) {
  const names = ["Decode batch", "Setting", "Sampled beside it", "Predicted tokens/s", "If off", "Why"];
  const numbers = [3, 4];
  const head = names.map((name, i) => el("th", { scope: "col", class: numbers.includes(i) ? "number" : null }, name));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "buckets-title" },
    el("table", {}, el("thead", {}, el("tr", {}, ...head)), body));
}

function notices(server) {
  const words = [];
  if (server.is_up === false) words.push(["bad", `Unreachable: ${server.why_down}`]);
  if (server.why_not_controllable) words.push(["", `Not steered: ${server.why_not_controllable}`]);
  if (server.failures) words.push(["bad", `Plugin failures in the engine: ${server.failures}`]);
  if (server.unsound) words.push(["bad", `Drafts are not sound: ${server.unsound}`]);
  if (server.adaptivity) words.push(["", `The engine adapts by itself: ${server.adaptivity}`]);
  if (server.restart_advised) words.push(["", "A restart without speculation is advised; see the events."]);
  for (const warning of [...(server.warnings ?? []), ...(server.gaps ?? [])]) words.push(["", warning]);
  shown.notices.replaceChildren(...words.map(([kind, text]) => el("p", { class: `notice ${kind}` }, text)));
}

function charts(server) {
  const history = server.history ?? [];
  const column = (i) => history.map((point) => point[i] ?? undefined);
  const at = column(0);
  const last = (values) => number(values[values.length - 1]);
  const [, running, waiting, , now, off, drafts] = [0, 1, 2, 3, 4, 5, 6].map(column);
  shown.speed.replaceChildren(lines(`Tokens per second: now ${last(now)}, predicted with speculation off ${last(off)}`, at, [{ values: now }, { values: off, b: true }]));
  shown.load.replaceChildren(lines(`Requests: ${last(running)} running, ${last(waiting)} waiting`, at, [{ values: running }, { values: waiting, b: true }], { isStep: true, least: 4 }));
  const most = Math.max(...(server.legal_tokens ?? [0]));
  shown.drafts.replaceChildren(lines(`Drafted tokens: ${last(drafts)}`, at, [{ values: drafts }], { isStep: true, least: most }));
  const survival = server.survival_at ?? [];
  const words = survival.map((share, i) => `${i + 1}: ${Math.round(100 * share)} %`).join(", ");
  shown.acceptance.replaceChildren(survival.length ? bars(`Accepted by position: ${words}`, survival) : el("p", { class: "quiet" }, "Nothing was drafted."));
}

function fillBuckets(server) {
  const buckets = server.buckets ?? [];
  shown.buckets.replaceChildren(...buckets.map((bucket) => {
    const { decode_batch_from: from, decode_batch_to: to } = bucket;
    const why = [reason(bucket.reason), bucket.detail].filter(Boolean).join(": ");
    return el("tr", {},
      el("td", {}, `${from === to ? to : `${from}–${to}`}${bucket.is_active ? ", in use" : ""}`),
      el("td", {}, bucket.words), el("td", {}, bucket.sample ?? UNKNOWN),
      el("td", { class: "number" }, number(bucket.present_tokens_per_s)),
      el("td", { class: "number" }, number(bucket.off_tokens_per_s)), el("td", { class: "words" }, why));
  }));
  if (!buckets.length) shown.buckets.replaceChildren(el("tr", {}, el("td", { colspan: "6", class: "quiet" }, "No decision yet.")));
}

function fillLog(node, lines, none) {
  const key = JSON.stringify(lines?.[0] ?? null) + (lines?.length ?? 0);
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  if (!lines?.length) {
    node.replaceChildren(el("p", { class: "quiet" }, none));
    return;
  }
  const rows = lines.map((line) => el("tr", {},
    el("td", {}, el("time", { datetime: line.when, title: line.when }, new Date(line.when).toLocaleTimeString("en-GB"))),
    el("td", { class: "words" }, el("strong", { class: line.is_warning ? "bad" : null }, reason(line.name).replaceAll("_", " ")), ` ${line.words}`)));
  node.replaceChildren(el("table", {}, el("tbody", {}, ...rows)));
}
