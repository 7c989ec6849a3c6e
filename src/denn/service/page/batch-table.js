/** The results of a batch in a table: decide by another threshold, filter the rows, open one. */
import { byId, debounced, el, route } from "./dom.js";
import { count, counted, excerpt, score } from "./format.js";
import { nameOf } from "./names.js";
import { tagText } from "./tag.js";

const PAGE = 50; // rows shown at a time
const NONE = "\n"; // filter for rows without a label; no label contains a line break
let table = null; // { texts, results, place } of the batch
let shown = 0;

export function startBatchTable() {
  const slider = byId("batch-threshold");
  const later = debounced(paintTable, 100);
  slider.addEventListener("input", () => {
    byId("batch-threshold-value").textContent = score(Number(slider.value));
    later();
  });
  byId("batch-decide").addEventListener("change", () => {
    byId("batch-own").hidden = !ownThreshold();
    paintTable();
  });
  for (const id of ["batch-label", "batch-unfamiliar"]) byId(id).addEventListener("change", paintTable);
  for (const id of ["batch-least", "batch-find"]) byId(id).addEventListener("input", later);
  byId("batch-filters").addEventListener("submit", (event) => event.preventDefault());
  byId("batch-more").addEventListener("click", more);
}

/**
 * Show the results of a batch, or hide the table.
 * @param {{texts: string[], results: (object|null|undefined)[], place: (row: number) => string}|null} batch
 */
export function showTable(batch) {
  table = batch;
  byId("batch-results").hidden = batch === null;
  byId("batch-preview").hidden = batch !== null;
  if (batch) paintTable();
}

/** Return the labels of a row above the threshold in use, as a file needs them; null for a skipped row. */
export function decided(answer) {
  if (!answer) return null;
  const given = chosen(answer);
  return { ...answer, labels: given.map(({ label }) => label), scores: given.map(({ score }) => score) };
}

function chosen({ scores }) {
  if (!ownThreshold()) return scores.filter((row) => row.chosen);
  const threshold = Number(byId("batch-threshold").value);
  return scores.filter((row) => row.score > threshold);
}

const ownThreshold = () => byId("batch-decide").value === "one";

/** Return the rows that have a result, with their labels. */
function decidedRows() {
  return table.results
    .map((answer, row) => answer && { row, given: chosen(answer), answer, text: table.texts[row] })
    .filter(Boolean);
}

function paintTable() {
  const all = decidedRows();
  offerLabels(all);
  const found = all.filter(matches());
  table.found = found;
  shown = 0;
  byId("batch-rows").replaceChildren();
  byId("batch-table").hidden = !found.length;
  append();
  const without = found.filter(({ given }) => !given.length).length;
  const part = found.length < all.length ? `${count(found.length)} of ${counted(all.length, "row")} match` : counted(all.length, "row");
  byId("batch-summary").textContent = `${part}, ${count(without)} without a label.`;
}

/** List the labels in the results, most frequent first, and keep the selected one. */
function offerLabels(rows) {
  const counts = new Map();
  for (const { given } of rows) for (const { label } of given) counts.set(label, (counts.get(label) ?? 0) + 1);
  const field = byId("batch-label");
  const selected = field.value;
  const labels = [...counts].sort(([a, many], [b, more]) => more - many || nameOf(a).localeCompare(nameOf(b)));
  if (selected && selected !== NONE && !counts.has(selected)) labels.push([selected, 0]);
  field.replaceChildren(
    el("option", { value: "" }, "any"),
    el("option", { value: NONE }, "no label"),
    ...labels.map(([label, rows]) => el("option", { value: label }, `${nameOf(label)} (${count(rows)})`)));
  field.value = selected;
}

/** Return the test for the filters: a label's own score must reach the minimum, or else the best label's score. */
function matches() {
  const label = byId("batch-label").value;
  const least = Number(byId("batch-least").value) || 0;
  const words = byId("batch-find").value.trim().toLowerCase();
  const unfamiliar = byId("batch-unfamiliar").checked;
  return ({ given, answer, text }) => {
    if (unfamiliar && !answer.unfamiliar) return false;
    if (words && !text.toLowerCase().includes(words)) return false;
    if (label === NONE) return !given.length && !least;
    const scored = label ? given.filter((row) => row.label === label) : given;
    return (!label || scored.length > 0) && (!least || scored.some((row) => row.score >= least));
  };
}

function append() {
  const rows = table.found.slice(shown, shown + PAGE).map(line);
  byId("batch-rows").append(...rows);
  shown += rows.length;
  byId("batch-more").hidden = shown >= table.found.length;
  return rows;
}

/** Show the next rows, and move the focus to the first of them. */
function more() {
  append()[0]?.querySelector("button").focus();
}

function line({ row, given, answer, text }) {
  const open = () => {
    location.hash = route("tag");
    tagText(text);
  };
  const chip = ({ label, score: value }) => el("li", {}, `${nameOf(label)} `, el("span", { class: "number" }, score(value)));
  return el("tr", {},
    el("th", { scope: "row", class: "number" }, table.place(row).replace(/^\D+/, "")),
    el("td", {},
      el("p", { class: "snippet" }, excerpt(text) || el("span", { class: "note" }, "no text")),
      answer.unfamiliar && el("span", { class: "flag lost" }, "unfamiliar")),
    el("td", {}, given.length ? el("ul", { class: "chips" }, given.map(chip)) : el("span", { class: "note" }, "none")),
    el("td", {}, el("button", { type: "button", on: { click: open }, "aria-label": `Open ${table.place(row)} in the Tag view` }, "Open")));
}
