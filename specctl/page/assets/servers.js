// The list of servers: a table that is sorted and filtered here. Rows are kept and updated in place.

import { el, number, percent, reason, setText, stateOf, times, UNKNOWN } from "./dom.js";

const COLUMNS = [
  { name: "Server", key: (s) => s.instance, text: (s) => s.instance },
  { name: "State", key: (s) => stateOf(s)[0], text: (s) => stateOf(s)[0], shade: (s) => stateOf(s)[1] },
  { name: "Model", key: (s) => s.model ?? "", text: (s) => s.model ?? UNKNOWN },
  { name: "Method", key: (s) => s.method ?? "", text: (s) => s.method ?? UNKNOWN },
  { name: "Running", isNumber: true, key: (s) => s.running ?? -1, text: (s) => number(s.running, 0) },
  { name: "Waiting", isNumber: true, key: (s) => s.waiting ?? -1, text: (s) => number(s.waiting, 0) },
  { name: "Setting", key: (s) => s.num_speculative_tokens ?? -1, text: (s) => s.setting ?? UNKNOWN },
  { name: "Tokens/s", isNumber: true, key: (s) => s.decode_tokens_per_s ?? -1, text: (s) => number(s.decode_tokens_per_s) },
  { name: "If off", isNumber: true, key: (s) => s.off_tokens_per_s ?? -1, text: (s) => number(s.off_tokens_per_s) },
  { name: "Speedup", isNumber: true, key: speedup, text: (s) => times(speedup(s)) },
  { name: "Accepted", isNumber: true, key: (s) => s.acceptance_rate ?? -1, text: (s) => percent(s.acceptance_rate) },
  { name: "Reason", key: (s) => s.reason ?? "", text: (s) => (s.is_up === false ? s.why_down : reason(s.reason)), isWords: true },
];

function speedup(server) {
  const { decode_tokens_per_s: now, off_tokens_per_s: off } = server;
  return now === undefined || !off ? undefined : now / off;
}

const rows = new Map();
let sorted = { column: -1, isDown: false };
let servers = [];

export function start() {
  const head = document.getElementById("servers-head");
  COLUMNS.forEach((column, i) => {
    const button = el("button", { type: "button", onclick: () => sortBy(i) }, column.name);
    head.append(el("th", { scope: "col", class: column.isNumber ? "number" : null }, button));
  });
  document.getElementById("filter").addEventListener("input", draw);
}

function sortBy(column) {
  const isSame = sorted.column === column;
  sorted = { column, isDown: isSame ? !sorted.isDown : Boolean(COLUMNS[column].isNumber) };
  [...document.getElementById("servers-head").children].forEach((cell, i) => {
    if (i === column) cell.setAttribute("aria-sort", sorted.isDown ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
  draw();
}

export function show(shown) {
  servers = shown;
  const known = new Set(servers.map((server) => server.target));
  for (const [target, row] of rows) {
    if (known.has(target)) continue;
    row.remove();
    rows.delete(target);
  }
  draw();
}

function draw() {
  const wanted = document.getElementById("filter").value.trim().toLowerCase();
  const order = [...servers];
  if (sorted.column >= 0) {
    const { key } = COLUMNS[sorted.column];
    order.sort((a, b) => compare(key(a), key(b)) * (sorted.isDown ? -1 : 1));
  }
  const body = document.getElementById("servers-body");
  let count = 0;
  order.forEach((server, i) => {
    const row = rows.get(server.target) ?? newRow(server);
    fill(row, server);
    if (body.children[i] !== row) body.insertBefore(row, body.children[i] ?? null);
    row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
    count += row.hidden ? 0 : 1;
  });
  document.getElementById("none").hidden = count > 0;
}

const compare = (a, b) => (typeof a === "number" ? (a ?? -1) - (b ?? -1) : String(a).localeCompare(String(b)));

function newRow(server) {
  const link = el("a", { href: `#/server/${encodeURIComponent(server.target)}` });
  const cells = COLUMNS.map((column, i) => {
    const kind = column.isNumber ? "number" : column.isWords ? "words" : null;
    return el("td", { class: kind, "data-label": i ? column.name : null }, i ? null : link);
  });
  const row = el("tr", {}, ...cells);
  rows.set(server.target, row);
  return row;
}

function fill(row, server) {
  COLUMNS.forEach((column, i) => {
    const cell = row.children[i];
    setText(i ? cell : cell.firstChild, column.text(server) ?? "");
    if (column.shade) cell.className = column.shade(server);
  });
}

export function totals(all) {
  const up = all.filter((server) => server.is_up).length;
  const steered = all.filter((server) => server.lease_held).length;
  const rate = all.reduce((sum, server) => sum + (server.emitted_tokens_per_s ?? 0), 0);
  return `${all.length} polled, ${up} reachable, ${steered} steered, ${number(rate, 0)} tokens/s emitted in all`;
}
