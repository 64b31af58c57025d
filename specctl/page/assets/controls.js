// What an operator may set over the policy: freeze, off, dry run, a table; and take back.

import * as api from "./api.js";
import { el, setText } from "./dom.js";

const MODES = [
  ["policy", "Resume", "the policy decides"],
  ["freeze", "Freeze", "hold the table as it is"],
  ["off", "Off", "no drafts for any batch"],
  ["dry_run", "Dry run", "hold the table, show what would change"],
];

export function build(server) {
  const said = el("p", { role: "status" });
  const buttons = MODES.map(([mode, name, words]) => el("button", { type: "button", title: words, onclick: () => send(mode) }, name));
  const rows = el("div");
  let legal = server.legal_tokens ?? [];

  async function send(mode, table = []) {
    try {
      await api.control(server.target, mode, table);
      said.className = "good";
      setText(said, "Taken; it shows with the next poll.");
    } catch (error) {
      said.className = "bad";
      setText(said, error.status === 401 ? "A control token is needed: press Token above." : `Refused: ${error.message}`);
    }
  }

  function addRow(upper = "", tokens = 0) {
    const upto = el("input", { type: "number", min: "1", value: upper, placeholder: "all above", "aria-label": "last decode batch" });
    const choice = el("select", { "aria-label": "drafted tokens" },
      ...legal.map((one) => el("option", { value: one, selected: one === tokens }, one ? `${one} tokens` : "off")));
    const row = el("div", { class: "form-row" }, "up to batch", upto, choice,
      el("button", { type: "button", onclick: () => row.remove() }, "Remove"));
    rows.append(row);
  }

  function take(now) {
    legal = now.legal_tokens ?? [];
    rows.replaceChildren();
    const buckets = now.buckets ?? [];
    buckets.forEach((bucket, i) => {
      const tokens = bucket.setting.num_speculative_tokens;
      const isSame = buckets[i + 1]?.setting.num_speculative_tokens === tokens;
      if (!isSame) addRow(i + 1 < buckets.length ? bucket.decode_batch_to : "", tokens);
    });
  }

  function put(event) {
    event.preventDefault();
    const table = [...rows.children].map((row) => {
      const [upto, choice] = row.querySelectorAll("input, select");
      return { decode_batch_to: upto.value ? Number(upto.value) : null, setting: { num_speculative_tokens: Number(choice.value) } };
    });
    send("table", table);
  }

  let latest = server;
  take(server);
  const form = el("form", { onsubmit: put }, el("p", { class: "quiet" }, "Table by hand: chains, by decode batch; the last row has no upper end."), rows,
    el("p", { class: "buttons" },
      el("button", { type: "button", onclick: () => addRow() }, "Add a row"),
      el("button", { type: "button", onclick: () => take(latest) }, "Take the table in force"),
      el("button", { type: "submit", class: "main" }, "Put this table")));
  const update = (now) => {
    latest = now;
    MODES.forEach(([mode], i) => buttons[i].setAttribute("aria-pressed", now.mode === mode));
    if (!legal.length && now.legal_tokens?.length) take(now);
  };
  return { node: el("div", {}, el("p", { class: "buttons" }, ...buttons), form, said), update };
}
