/** The service, the permissions of this tab's key, and events for changes. */
import { denied, get } from "./api.js";
import { byId, el } from "./dom.js";
import { when } from "./format.js";
import { currentKey, setKey } from "./key.js";
import { say } from "./notice.js";

/**
 * Fires `session` when permissions may have changed, `stored` when documents have, `relabelled` when labels were merged,
 * `forgotten` with the id of a forgotten document, and `refitted` when the model has changed.
 */
export const news = new EventTarget();

/** Last response of /v1/session; initially nothing is allowed. */
export let session = { rights: [], may_read: false, may_write: false, writes: "off", learns: false, k: null, limits: {} };

/** Request the permissions of the key and notify listeners. */
export async function refreshSession() {
  session = await get("session");
  byId("model-name").textContent = session.model;
  byId("open-key").replaceChildren("Access", el("span", { class: "access-state" }, `: ${session.rights.at(-1) ?? "key required"}`));
  byId("key-state").textContent = rights();
  byId("key-error").textContent = "";
  byId("key-forget").disabled = !currentKey();
  news.dispatchEvent(new Event("session"));
}

// A key may be revoked meanwhile. The failed request is reported by its sender; without access there is nothing to lose.
denied.addEventListener("denied", () => session.may_read && refreshSession().catch(() => {}));

/** Notify listeners that the datastore has changed. */
export const stored = () => news.dispatchEvent(new Event("stored"));

/** Notify listeners that labels were merged, or a merge was undone. */
export function relabelled() {
  stored();
  news.dispatchEvent(new Event("relabelled"));
}

/** Notify listeners that a document was forgotten. */
export function forgotten(id) {
  stored();
  news.dispatchEvent(new CustomEvent("forgotten", { detail: id }));
}

/** Return the reason why documents cannot be changed, or null if they can. */
export function whyReadOnly() {
  if (session.learns && session.may_write) return null;
  if (!session.learns) return "This model has no datastore, so it cannot learn from documents.";
  if (session.writes === "off") return "Editing is off: the service has no key with the right to teach.";
  if (session.why_not) return session.why_not;
  return `${session.key ? "This key can only read. " : ""}Editing needs a key with the right to teach.`;
}

/** Return whether a key would allow more. */
export const keyWouldHelp = () =>
  !session.may_read || (!session.may_write && session.learns && session.writes === "on");

/** Let the form set the key; a key that allows no more than the current one is not kept. */
export function startKeyForm() {
  const form = byId("key-form");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const before = { key: currentKey(), read: session.may_read, write: session.may_write };
    const field = form.elements.namedItem("key");
    setKey(field.value.trim());
    field.value = "";
    try {
      await refreshSession();
      const useful = session.may_write || (session.may_read && !before.read);
      if (useful) return finish();
      setKey(before.key);
      await refreshSession();
      byId("key-error").textContent = "This key is unknown, or gives no additional access.";
    } catch (error) {
      setKey(before.key);
      byId("key-error").textContent = error.message;
    }
  });
}

function finish() {
  byId("key-dialog").close();
  say(`You can now ${access()}.`);
}

const access = () => session.rights.join(" and ").replace(" and teach and ", ", teach and ");

function rights() {
  if (!session.may_read) return session.why_not ?? "This service requires a key.";
  const key = session.key && `Key “${session.key}”${session.expires ? `, which expires on ${when(session.expires)}` : ""}.`;
  return [key, `You can ${access()}.`, !session.may_write && whyReadOnly()].filter(Boolean).join(" ");
}
