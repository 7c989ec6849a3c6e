/** The evidence for a label, its words and neighbours: in a card next to the labels, or below the label if narrow. */
import { byId, chips, el, hidden, rejectedChips, route } from "./dom.js";
import { counted, excerpt, score } from "./format.js";
import { nameOf } from "./names.js";

const FEW = 5; // number of neighbours shown at first in the card
const FEWER = 3; // and below a label

/** Whether there is room for the card next to the labels. */
export const besides = matchMedia("(min-width: 80rem)");

/** Show the evidence for a label in the card; without a label, all neighbours. */
export function showEvidence(prediction, label) {
  const { neighbours } = prediction;
  const support = label === null ? neighbours : neighboursWith(prediction, label);
  byId("evidence").classList.toggle("all", label === null);
  byId("evidence").scrollTop = 0;
  byId("evidence-title").textContent = label === null ? "Neighbours" : `Evidence for ${nameOf(label)}`;
  byId("evidence-words").replaceChildren(...(label === null ? [] : words(prediction, label)));
  byId("evidence-note").textContent = label === null
    ? `The ${counted(neighbours.length, "stored document")} most similar to the text.` : share(support, neighbours);
  const few = besides.matches ? FEW : 0; // far below the labels, it starts closed
  byId("neighbours").setAttribute("aria-label", label === null ? "Neighbours" : `Neighbours with ${nameOf(label)}`);
  byId("neighbours").replaceChildren(...support.slice(0, few).map((one) => neighbourItem(one, 220)));
  const more = byId("neighbours-more");
  more.hidden = support.length <= few;
  more.textContent = `Show all ${support.length}`;
  more.onclick = () => extend(byId("neighbours"), support.slice(few), more);
  const all = byId("neighbours-all");
  all.hidden = label === null || !neighbours.length;
  all.textContent = `All ${counted(neighbours.length, "neighbour")}`;
  all.onclick = () => showEvidence(prediction, null);
}

/** Return the evidence for a label, to show below it. */
export function because(prediction, label) {
  const support = neighboursWith(prediction, label);
  const list = el("ol", { class: "neighbours", "aria-label": `Neighbours with ${nameOf(label)}` },
    support.slice(0, FEWER).map((one) => neighbourItem(one, 140)));
  const more = el("button", { type: "button" }, `Show all ${support.length}`);
  more.addEventListener("click", () => extend(list, support.slice(FEWER), more));
  return el("div", { class: "because" },
    words(prediction, label),
    el("p", { class: "note" }, share(support, prediction.neighbours)),
    support.length > 0 && list,
    support.length > FEWER && more);
}

function extend(list, neighbours, button) {
  const before = list.children.length;
  list.append(...neighbours.map((one) => neighbourItem(one, 220)));
  list.children[before].querySelector("a").focus();
  button.hidden = true;
}

const neighboursWith = ({ neighbours }, label) => neighbours.filter((neighbour) => neighbour.labels.includes(label));

function share(support, neighbours) {
  if (!neighbours.length) return "";
  return `${support.length} of ${counted(neighbours.length, "neighbour")} ${support.length === 1 ? "has" : "have"} this label.`;
}

/** Return the list of the words that support a label, if there are any. */
function words({ scores }, label) {
  const found = scores.find((row) => row.label === label)?.words ?? [];
  if (!found.length) return [];
  return [el("ul", { class: "words", "aria-label": `Supporting words for ${nameOf(label)}` },
    found.map(({ word }) => el("li", {}, word)))];
}

function neighbourItem({ id, similarity, labels, rejected, text }, characters) {
  return el("li", { class: "neighbour", data: { id, labels: JSON.stringify(labels) } },
    el("div", { class: "neighbour-head" },
      el("a", { href: route("documents", {}, id) }, id),
      el("span", { class: "similarity", title: "cosine similarity" }, hidden("similarity "), score(similarity))),
    el("p", { class: "snippet" }, excerpt(text, characters)),
    labels.length ? chips(labels) : el("p", { class: "note" }, "No labels."),
    rejected.length > 0 && rejectedChips(rejected));
}
