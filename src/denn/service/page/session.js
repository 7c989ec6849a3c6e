/** What the service is and what this tab's key may do; and news of changes in the datastore. */
import { get } from "./api.js";
import { byId } from "./dom.js";
import { currentKey, setKey } from "./key.js";
import { fail, say } from "./notice.js";

/** Fires `session` when rights have changed and `stored` when documents have. */
export const news = new EventTarget();

/** The last answer of /v1/session; before the first one nothing is allowed. */
export let session = { may_read: false, may_write: false, writes: "off", learns: false, k: null, limits: {} };

/** Ask what the key may do, and tell everybody. */
export async function refreshSession() {
  session = await get("session");
  byId("model-name").textContent = session.model;
  byId("evidence").hidden = !session.neighbours;
  byId("open-key").textContent = session.may_write ? "May teach" : session.may_read ? "Read only" : "Key needed";
  byId("key-state").textContent = rights();
  byId("key-forget").disabled = !currentKey();
  news.dispatchEvent(new Event("session"));
}

/** Tell everybody that the datastore has changed. */
export const stored = () => news.dispatchEvent(new Event("stored"));

/** Why documents cannot be changed now, in one sentence; null where they can. */
export function whyReadOnly() {
  if (session.learns && session.may_write) return null;
  if (!session.learns) return "This model keeps no datastore, so it cannot learn documents.";
  if (session.writes === "off") return "Teaching is off: the service was started without a write key.";
  return "Teaching needs a key that may write.";
}

/** Whether a key would help. */
export const keyWouldHelp = () =>
  !session.may_read || (!session.may_write && session.learns && session.writes === "on");

/** Make a form take a key: one that allows no more than before is not kept. */
export function bindKeyForm(form) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const before = { key: currentKey(), read: session.may_read, write: session.may_write };
    const field = form.elements.namedItem("key");
    setKey(field.value.trim());
    field.value = "";
    try {
      await refreshSession();
      const useful = session.may_write || (session.may_read && !before.read);
      if (useful) return finish(form);
      setKey(before.key);
      await refreshSession();
      fail(new Error("The service does not know this key, or it may do no more than you may now."));
    } catch (error) {
      setKey(before.key);
      fail(error);
    }
  });
}

function finish(form) {
  form.closest("dialog")?.close();
  say(session.may_write ? "You may teach now." : "You may read now.");
}

function rights() {
  if (!session.may_read) return "This service asks for a key.";
  return session.may_write ? "You may read and teach." : `You may read. ${whyReadOnly()}`;
}
