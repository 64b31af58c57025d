// Asks the daemon every two seconds, while the page is seen, and shows the servers or one of them.

import * as api from "./api.js";
import * as detail from "./detail.js";
import { setText } from "./dom.js";
import * as servers from "./servers.js";

const INTERVAL_MS = 2000;
const byId = (id) => document.getElementById(id);
let timer = null;
let isAsking = false;
let isAskedAgain = false;
let shownAt = null;
let isRefused = false;

const chosen = () => (location.hash.startsWith("#/server/") ? decodeURIComponent(location.hash.slice(9)) : null);

async function ask() {
  if (isAsking) {
    isAskedAgain = true;
    return;
  }
  isAsking = true;
  clearTimeout(timer);
  isRefused = false;
  try {
    await draw();
    shownAt = new Date().toLocaleTimeString("en-GB");
    said("");
  } catch (error) {
    failed(error);
  }
  isAsking = false;
  if (isAskedAgain) {
    isAskedAgain = false;
    ask();
  } else if (!document.hidden && !isRefused) timer = setTimeout(ask, INTERVAL_MS);
}

async function draw() {
  const found = await api.overview();
  const { daemon, targets } = found;
  const only = targets.length === 1 ? targets[0].target : null;
  const target = chosen() ?? only;
  setText(byId("daemon"), `${daemon.owner}, version ${daemon.version}${daemon.is_dry_run ? ", dry run: nothing is changed" : ""}`);
  byId("token-open").hidden = !daemon.can_control && !api.token.get();
  if (target) {
    detail.show(byId("detail"), await api.detail(target), daemon);
  } else {
    detail.close();
    setText(byId("totals"), servers.totals(targets));
    servers.show(targets);
  }
  byId("overview").hidden = Boolean(target);
  byId("detail").hidden = !target;
  document.title = target ? `${byId("detail-title").textContent} – specctl` : "specctl";
}

function said(words) {
  const state = byId("state");
  state.className = words ? "bad" : "";
  state.hidden = !words;
  setText(state, words);
}

function failed(error) {
  if (error instanceof api.Refused && error.status === 401) {
    isRefused = true;
    said(api.token.get() ? "The token is not known; give another one." : "A token is needed to read.");
    byId("token-open").hidden = false;
  } else if (error instanceof api.Refused && error.status === 404) {
    said("This server is no target of the daemon any more.");
  } else if (error instanceof api.Refused) said(error.message);
  else said(`The daemon does not answer${shownAt ? `; the figures are of ${shownAt}` : ""}.`);
}

function startToken() {
  const dialog = byId("token");
  byId("token-open").addEventListener("click", () => dialog.showModal());
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "set") api.token.set(byId("token-value").value.trim());
    byId("token-value").value = "";
    ask();
  });
}

servers.start();
startToken();
addEventListener("hashchange", () => {
  ask();
  byId("main").focus();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) ask();
});
ask();
