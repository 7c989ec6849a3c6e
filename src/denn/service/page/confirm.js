/** What a person has to say yes to. */
import { request, SOURCE } from "./api.js";
import { byId } from "./dom.js";

/** Take a change back; where that touches many documents, only if the person agrees. Return null where not. */
export async function undo(number) {
  const send = (confirm) => request("POST", `history/${number}/undo`, { query: { source: SOURCE, confirm } });
  try {
    return await send();
  } catch (error) {
    const asked = error.errors?.find(({ where }) => where === "query.confirm");
    if (!asked) throw error;
    const agreed = await confirmed(`Undo change ${number}?`, `This ${asked.message}.`, "Undo it");
    return agreed ? send(true) : null;
  }
}

/** Ask in a dialog; Escape means no. */
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
