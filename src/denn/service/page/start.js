/** The Tag view before the first text: examples that the model has not learnt from. */
import { get } from "./api.js";
import { byId, el } from "./dom.js";
import { excerpt } from "./format.js";
import { news, session } from "./session.js";
import { tagText } from "./tag.js";

const SHOWN = 3;
let asked = false;

export function startExamples() {
  news.addEventListener("session", showExamples);
  byId("start-help").addEventListener("click", (event) => {
    event.preventDefault();
    byId("help").showModal();
  });
}

async function showExamples() {
  if (asked || !session.may_read) return;
  asked = true;
  try {
    const { documents, held_out: heldOut } = await get("examples", { limit: SHOWN });
    byId("examples").hidden = !documents.length;
    byId("examples-note").textContent = heldOut
      ? "These documents come from the model's corpus. It has not learnt from them."
      : "These documents are in the datastore, so the model knows their labels.";
    byId("examples-list").replaceChildren(...documents.map(({ text }) =>
      el("li", {}, el("button", { type: "button", on: { click: () => tagText(text) } }, el("span", {}, excerpt(text, 200))))));
  } catch {
    asked = false; // the page also works without examples; they are requested again with the next key
  }
}
