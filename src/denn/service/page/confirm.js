/** Actions that need confirmation. */
import { request, SOURCE } from "./api.js";
import { byId } from "./dom.js";

/**
 * Undo a change, after asking if it affects many documents. Return null if the user declines; a change that is already
 * undone counts as undone.
 */
export async function undo(number) {
  const send = (confirm) => request("POST", `history/${number}/undo`, { query: { source: SOURCE, confirm } });
  try {
    return await send();
  } catch (error) {
    if (error.status === 409 && error.message.includes("already undone")) return {};
    const asked = error.errors?.find(({ where }) => where === "query.confirm");
    if (!asked) throw error;
    const agreed = await confirmed(`Undo change ${number}?`, `This ${asked.message}.`, "Undo");
    return agreed ? send(true) : null;
  }
}

/** Ask in a dialog and return the answer; Escape means no. */
export function confirmed(title, text, yes) {
  const dialog = byId("confirm");
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((answer) => {
    dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true });
  });
}
