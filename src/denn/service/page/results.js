/** Show a prediction: labels with their witnesses, evidence on demand, and links to the text and the neighbours. */
import { byId, el, hidden } from "./dom.js";
import { because, besides, showEvidence } from "./evidence.js";
import { score } from "./format.js";
import { nameOf } from "./names.js";
import { highlight } from "./reading.js";

const FEW = 5; // number of other candidates shown at first
const UNFAMILIAR = "Unfamiliar text: no stored document is similar, so these labels are less reliable.";
let shown = null; // the prediction, the decisions, and the witnesses that know at least one of the labels
let selected = null; // the label that was focused last
let allOthers = false;

/**
 * Show a prediction.
 * @param {object} prediction see the API
 * @param {import("./decisions.js").Decisions} decisions
 */
export function showPrediction(prediction, decisions) {
  const focused = document.activeElement?.closest("#result .label-row")?.dataset.label;
  const opened = openRow()?.dataset.label;
  shown = { prediction, decisions, witnesses: witnessesOf(prediction) };
  showRows(decisions);
  byId("unfamiliar").textContent = prediction.unfamiliar ? UNFAMILIAR : "";
  const row = labelRows().find((one) => one.dataset.label === opened);
  if (row && !besides.matches) toggleEvidence(row);
  showEvidence(prediction, besides.matches && selectedRow() ? selected : null);
  if (focused !== undefined) focusLabel(focused);
  light(null);
}

/** Forget the label that was focused, and close the list of other candidates: the next text is new. */
export function forgetSelection() {
  selected = null;
  allOthers = false;
}

/** Return the witnesses that know at least one label, in the order of the label that most of them know. */
function witnessesOf({ scores }) {
  const known = scores.map((row) => Object.keys(row.parts)).sort((a, b) => b.length - a.length);
  return [...new Set(known.flat())];
}

function showRows(decisions) {
  const { prediction: { scores }, witnesses } = shown;
  const known = new Set(scores.map((row) => row.label));
  const added = decisions.added.filter((label) => !known.has(label)).map((label) => ({ label, score: null, parts: {} }));
  const rows = [...scores.filter((row) => row.chosen), ...added];
  const others = scores.filter((row) => !row.chosen);
  const few = allOthers || others.length <= FEW + 1 ? others : others.slice(0, FEW);
  const make = (row) => labelRow(row, decisions);
  byId("chosen").replaceChildren(...(rows.length ? rows.map(make) : [nothing("No label is above its threshold.")]));
  byId("others").replaceChildren(...(others.length ? few.map(make) : [nothing("No other label comes close.")]));
  byId("columns").replaceChildren(...["score", ...witnesses].map((name) => el("span", {}, name)));
  byId("result-body").style.setProperty("--witnesses", witnesses.length);
  byId("others-more").hidden = few.length === others.length;
  byId("others-more").textContent = `Show all ${others.length}`;
  byId("others-more").onclick = () => {
    allOthers = true;
    showRows(decisions);
    focusLabel(others[FEW].label);
  };
  paintDecisions(decisions);
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

/** Return the row of the label that was focused last. */
export const selectedRow = () => labelRows().find((row) => row.dataset.label === selected);

const openRow = () => document.querySelector("#result .because")?.closest(".label-row");

/** Focus the row of a label: its button to accept it, or its name for users who cannot. */
export function focusLabel(label) {
  const row = labelRows().find((one) => one.dataset.label === label);
  const [accept, name] = ["accept", "name"].map((part) => row?.querySelector(`.${part}`));
  (accept?.checkVisibility() ? accept : name)?.focus();
}

/** Show the evidence for the label of a row in its card, or below the label if it is not there. */
export function toggleEvidence(row) {
  if (besides.matches) return select(row.dataset.label);
  const before = openRow();
  before?.querySelector(".because").remove();
  before?.querySelector(".name").setAttribute("aria-expanded", "false");
  if (before === row) return;
  row.append(because(shown.prediction, row.dataset.label));
  row.querySelector(".name").setAttribute("aria-expanded", "true");
  select(row.dataset.label);
}

/** Make a label the one whose evidence is shown. */
function select(label) {
  selected = label;
  if (besides.matches) showEvidence(shown.prediction, label);
  light(null);
}

/** Highlight the words and neighbours of the focused label, or of the one under the pointer, and a neighbour's labels. */
export function linkLabelsAndEvidence() {
  const layout = document.querySelector(".tag-layout");
  // Not pointerover, which also fires when the page scrolls under a resting pointer.
  layout.addEventListener("pointermove", ({ target }) => light(target));
  layout.addEventListener("pointerleave", () => light(null));
  layout.addEventListener("focusin", ({ target }) => {
    const label = target.closest(".label-row")?.dataset.label;
    if (label !== undefined) select(label);
    else light(target);
  });
  besides.addEventListener("change", () => shown && showPrediction(shown.prediction, shown.decisions));
}

function light(target) {
  const neighbour = target?.closest(".neighbour") ?? null;
  const label = target?.closest(".label-row")?.dataset.label ?? selected;
  const labels = neighbour ? JSON.parse(neighbour.dataset.labels) : [label];
  const lit = (element, state) => element.classList.toggle("lit", state);
  for (const element of document.querySelectorAll("#view-tag .label-row, #view-tag .neighbour .chips li")) {
    lit(element, labels.includes(element.dataset.label));
  }
  for (const element of document.querySelectorAll("#view-tag .neighbour")) {
    const supports = element.closest(".all") && JSON.parse(element.dataset.labels).includes(label); // elsewhere, all do
    lit(element, neighbour ? element === neighbour : Boolean(supports));
  }
  highlight(label, rowOf(label)?.words ?? []);
}

const rowOf = (label) => shown?.prediction.scores.find((row) => row.label === label);

function labelRow({ label, score: value, threshold, parts }, decisions) {
  const decide = (state) => () => decisions.toggle(label, state);
  const known = value !== null;
  const name = nameOf(label);
  const row = el("li", { class: "label-row", data: { label } },
    el("div", { class: "decide teaching", role: "group", "aria-label": name },
      el("button", { type: "button", class: "accept", title: "Accept (a)", on: { click: decide("accepted") } },
        el("span", { "aria-hidden": "true" }, "✓"), hidden(`Accept ${name}`)),
      el("button", { type: "button", class: "reject", title: "Reject (r)", on: { click: decide("rejected") } },
        el("span", { "aria-hidden": "true" }, "✕"), hidden(`Reject ${name}`))),
    el("button", {
      type: "button", class: "name", title: name === label ? null : label,
      "aria-expanded": besides.matches ? null : "false", "aria-controls": besides.matches ? "evidence" : null,
      on: { click: () => toggleEvidence(row) },
    }, name),
    el("span", { class: "score" }, known ? [hidden("score "), score(value)] : "added",
      known && hidden(`, threshold ${score(threshold)}`)),
    bar(value, threshold),
    el("dl", { class: "witnesses" }, shown.witnesses.map((witness) => part(witness, parts[witness]))));
  return row;
}

/** Return the score of a witness for a label, with a bar; a witness may not know the label. */
function part(witness, value) {
  const track = el("span", { class: "track", "aria-hidden": "true" }, el("span", { class: "fill" }));
  track.style.setProperty("--score", value ?? 0);
  const number = value === undefined ? [el("span", { "aria-hidden": "true" }, "–"), hidden("unknown")] : score(value);
  return el("div", { class: "witness" }, el("dt", {}, witness), el("dd", {}, number, track));
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

const nothing = (text) => el("li", { class: "note nothing" }, text);
