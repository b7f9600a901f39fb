// The server: every change answers with the whole new state; events announce what another page changed. Addresses are
// relative, so that a proxy may put a path before them.

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new Error("The server does not answer. Start fewcal studio again and open the link that it prints.");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error || `The server answered ${response.status}.`);
  return body;
}

export const get = (path) => request(path);

export const send = (method, path, body) =>
  request(path, { method, headers: { "content-type": "application/json" }, body: JSON.stringify(body ?? {}) });

export const upload = (file) =>
  request("api/files", { method: "POST", headers: { "x-file-name": encodeURIComponent(file.name) }, body: file });

// Calls back with the session and its newest revision, now and after every change; the browser connects again by itself,
// unless the server refuses it, which is `lost` for good.
export function listen(changed, lost) {
  const events = new EventSource("api/events");
  events.onmessage = (event) => changed(...JSON.parse(event.data));
  events.onerror = () => lost(events.readyState === EventSource.CLOSED);
}
