// The daemon's API. The token, if there is one, stays in this tab.

const KEY = "specctl-token";

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, body.message ?? `HTTP ${answer.status}`);
  return body;
}

export const overview = () => send("/api/v1/targets");

export const detail = (url) => send(`/api/v1/target?url=${encodeURIComponent(url)}`);

export const control = (target, mode, rows = []) =>
  send("/api/v1/control", {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Specctl-Control": "1" },
    body: JSON.stringify({ target, mode, rows }),
  });
