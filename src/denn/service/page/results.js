/** Show a prediction: labels with bars and buttons, neighbours, and links between them. */
import { byId, chips, el, hidden, rejectedChips, route } from "./dom.js";
import { counted, excerpt, score } from "./format.js";
import { nameOf } from "./names.js";

const FEW = 10; // number of neighbours shown at first
const UNFAMILIAR = "Unfamiliar text: no stored document is similar, so these labels are less reliable.";

/**
 * Show a prediction.
 * @param {object} prediction see the API
 * @param {import("./decisions.js").Decisions} decisions
 */
export function showPrediction(prediction, decisions) {
  const focused = focusedControl();
  const known = new Set(prediction.scores.map((row) => row.label));
  const added = decisions.added.filter((label) => !known.has(label)).map((label) => ({ label, score: null }));
  const rows = [...prediction.scores.filter((row) => row.chosen), ...added];
  const others = prediction.scores.filter((row) => !row.chosen);
  const make = (row) => labelRow(row, prediction, decisions);
  byId("chosen").replaceChildren(...(rows.length ? rows.map(make) : [nothing("No label reaches its threshold.")]));
  byId("others").replaceChildren(...(others.length ? others.map(make) : [nothing("No other label comes close.")]));
  byId("unfamiliar").textContent = prediction.unfamiliar ? UNFAMILIAR : "";
  showNeighbours(prediction.neighbours);
  paintDecisions(decisions);
  focused?.();
}

function showNeighbours(neighbours) {
  const more = byId("neighbours-more");
  const show = (all) => {
    byId("neighbours").replaceChildren(...neighbours.slice(0, all ? undefined : FEW).map(neighbourItem));
    more.hidden = neighbours.length <= FEW;
    more.textContent = all ? "Show fewer" : `Show all ${neighbours.length}`;
    more.onclick = () => show(!all);
  };
  show(false);
}

/** Show the decisions on the label rows. */
export function paintDecisions(decisions) {
  for (const row of labelRows()) {
    const state = decisions.of(row.dataset.label);
    row.dataset.state = state ?? "open";
    row.querySelector(".accept").setAttribute("aria-pressed", state === "accepted");
    row.querySelector(".reject").setAttribute("aria-pressed", state === "rejected");
  }
}

/** Return the label rows, in display order. */
export const labelRows = () => [...document.querySelectorAll("#result .label-row")];

/** Focus the row of a label. */
export function focusLabel(label) {
  labelRows().find((row) => row.dataset.label === label)?.querySelector(".accept").focus();
}

/** Highlight the neighbours of the hovered or focused label, and the labels of such a neighbour. */
export function linkLabelsAndNeighbours() {
  const layout = document.querySelector(".tag-layout");
  // Not pointerover, which also fires when the page scrolls under a resting pointer.
  for (const event of ["pointermove", "focusin"]) layout.addEventListener(event, ({ target }) => light(layout, target));
  for (const event of ["pointerleave", "focusout"]) layout.addEventListener(event, () => light(layout, null));
}

function light(layout, target) {
  const neighbour = target?.closest(".neighbour") ?? null;
  const row = neighbour ? null : (target?.closest(".label-row") ?? null);
  const labels = neighbour ? JSON.parse(neighbour.dataset.labels) : row ? [row.dataset.label] : [];
  for (const element of layout.querySelectorAll(".label-row, .neighbour .chips li")) {
    element.classList.toggle("lit", labels.includes(element.dataset.label));
  }
  for (const element of layout.querySelectorAll(".neighbour")) {
    element.classList.toggle("lit", element === neighbour || (row !== null && gave(element, row.dataset.label)));
  }
}

const gave = (neighbour, label) => JSON.parse(neighbour.dataset.labels).includes(label);

function labelRow({ label, score: value, threshold, parts, words }, { neighbours }, decisions) {
  const support = neighbours.filter((neighbour) => neighbour.labels.includes(label));
  const decide = (state) => () => decisions.toggle(label, state);
  const known = value !== null;
  const name = nameOf(label);
  return el("li", { class: "label-row", data: { label } },
    el("div", { class: "decide", role: "group", "aria-label": name },
      el("button", { type: "button", class: "accept", title: "Accept (a)", on: { click: decide("accepted") } },
        el("span", { "aria-hidden": "true" }, "✓"), hidden(`Accept ${name}`)),
      el("button", { type: "button", class: "reject", title: "Reject (r)", on: { click: decide("rejected") } },
        el("span", { "aria-hidden": "true" }, "✕"), hidden(`Reject ${name}`))),
    el("span", { class: "name", title: name === label ? null : label }, name),
    el("span", { class: "score" }, known ? [hidden("score "), score(value)] : "added",
      known && hidden(`, threshold ${score(threshold)}`)),
    bar(value, threshold),
    known && Object.keys(parts).length > 0 && witnesses(parts),
    known && words.length > 0 && el("ul", { class: "words", "aria-label": `Supporting words for ${name}` },
      words.map(({ word }) => el("li", {}, word))),
    supporters(support, neighbours.length));
}

/** Return the score of each witness for a label, with bars. */
function witnesses(parts) {
  return el("dl", { class: "witnesses" }, Object.entries(parts).map(([name, value]) => {
    const track = el("span", { class: "track", "aria-hidden": "true" }, el("span", { class: "fill" }));
    track.style.setProperty("--score", value);
    return el("div", { class: "witness" }, el("dt", {}, name), el("dd", {}, score(value), track));
  }));
}

function bar(value, threshold) {
  const element = el("div", { class: "bar", "aria-hidden": "true" });
  if (value === null) return element;
  element.title = `score ${score(value)}, threshold ${score(threshold)}`;
  element.append(el("span", { class: "fill" }), el("span", { class: "mark" }));
  element.style.setProperty("--score", value);
  element.style.setProperty("--threshold", threshold);
  return element;
}

function supporters(support, all) {
  if (!all) return el("p", { class: "support note" }, "");
  if (!support.length) return el("p", { class: "support note" }, `0 of ${counted(all, "neighbour")}`);
  return el("details", { class: "support" },
    el("summary", {}, `${support.length} of ${counted(all, "neighbour")}`),
    el("ol", { class: "neighbours" }, support.map(neighbourItem)));
}

function neighbourItem(neighbour) {
  const { id, similarity, labels, rejected, text } = neighbour;
  return el("li", { class: "neighbour", data: { id, labels: JSON.stringify(labels) } },
    el("div", { class: "neighbour-head" },
      el("a", { href: route("documents", {}, id) }, id),
      el("span", { class: "similarity", title: "cosine similarity" }, hidden("similarity "), score(similarity))),
    el("p", { class: "snippet" }, excerpt(text, 220)),
    labels.length ? chips(labels) : el("p", { class: "note" }, "No labels."),
    rejected.length > 0 && rejectedChips(rejected));
}

const nothing = (text) => el("li", { class: "note nothing" }, text);

/** Return a function that restores the focus to the current label row, or null. */
function focusedControl() {
  const row = document.activeElement?.closest("#result .label-row");
  if (!row) return null;
  return () => focusLabel(row.dataset.label);
}
