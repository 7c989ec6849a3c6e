/** The service, the permissions of this tab's key, and events for changes. */
import { get } from "./api.js";
import { byId } from "./dom.js";
import { currentKey, setKey } from "./key.js";
import { fail, say } from "./notice.js";

/** Fires `session` when permissions may have changed, and `stored` when documents have. */
export const news = new EventTarget();

/** Last response of /v1/session; initially nothing is allowed. */
export let session = { may_read: false, may_write: false, writes: "off", learns: false, k: null, limits: {} };

/** Request the permissions of the key and notify listeners. */
export async function refreshSession() {
  session = await get("session");
  byId("model-name").textContent = session.model;
  byId("evidence").hidden = !session.neighbours;
  byId("open-key").textContent = session.may_write ? "Editing on" : session.may_read ? "Read-only" : "Key required";
  byId("key-state").textContent = rights();
  byId("key-forget").disabled = !currentKey();
  news.dispatchEvent(new Event("session"));
}

/** Notify listeners that the datastore has changed. */
export const stored = () => news.dispatchEvent(new Event("stored"));

/** Return the reason why documents cannot be changed, or null if they can. */
export function whyReadOnly() {
  if (session.learns && session.may_write) return null;
  if (!session.learns) return "This model has no datastore, so it cannot learn from documents.";
  if (session.writes === "off") return "Editing is off: the service was started without a write key.";
  return "Editing needs a key with write access.";
}

/** Return whether a key would allow more. */
export const keyWouldHelp = () =>
  !session.may_read || (!session.may_write && session.learns && session.writes === "on");

/** Let a form set the key; a key that allows no more than the current one is not kept. */
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
      fail(new Error("This key is unknown, or gives no additional access."));
    } catch (error) {
      setKey(before.key);
      fail(error);
    }
  });
}

function finish(form) {
  form.closest("dialog")?.close();
  say(session.may_write ? "You can now edit." : "You can now read.");
}

function rights() {
  if (!session.may_read) return "This service requires a key.";
  return session.may_write ? "You can read and edit." : `You can read. ${whyReadOnly()}`;
}
