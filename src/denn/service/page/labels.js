/** The Labels view: all labels with document counts; thresholds where they differ. */
import { get } from "./api.js";
import { byId, debounced, el, route, tableRow } from "./dom.js";
import { count, counted, score } from "./format.js";
import { editLabel, startLabelDialog } from "./label-dialog.js";
import { nameOf } from "./names.js";
import { fail } from "./notice.js";
import { news, session } from "./session.js";

const PAGE = 100;
let shown = 0;
let stale = true;
let running = new AbortController();

export function startLabels() {
  byId("labels-form").addEventListener("submit", (event) => event.preventDefault());
  byId("labels-query").addEventListener("input", debounced(() => load(0), 150));
  byId("labels-sort").addEventListener("change", () => load(0));
  byId("labels-more").addEventListener("click", () => load(shown));
  for (const event of ["stored", "session", "refitted"]) {
    news.addEventListener(event, () => {
      stale = true;
      if (event !== "session" && !byId("view-labels").hidden) load(0);
    });
  }
  startLabelDialog();
}

/** Open the view; keep the search. */
export function showLabels() {
  if (stale) load(0);
}

async function load(offset) {
  running.abort();
  running = new AbortController();
  const query = byId("labels-query").value.trim();
  try {
    const found = await get("labels", { query, sort: byId("labels-sort").value, offset, limit: PAGE }, running.signal);
    byId("labels-actions").hidden = !mayEdit();
    const rows = found.labels.map((label) => row(label, found.decides));
    if (offset) byId("labels-rows").append(...rows);
    else byId("labels-rows").replaceChildren(...rows);
    shown = offset + found.labels.length;
    stale = false;
    byId("labels-more").hidden = shown >= found.total;
    byId("labels-summary").textContent = `${summary(found.total, query)}${thresholds(found)}`;
    if (offset) rows[0]?.querySelector("a").focus(); // move to the first new row
  } catch (error) {
    fail(error);
  }
}

function summary(total, query) {
  if (!total) return query ? `No labels contain “${query}”.` : "There are no labels.";
  return shown < total ? `${count(shown)} of ${counted(total, "label")}.` : `${counted(total, "label")}.`;
}

/** Say the threshold once if all labels of the training share it. */
function thresholds({ labels, decides }) {
  const trained = labels.find((row) => row.trained);
  if (!trained || decides === "per_label") return "";
  const later = labels.some((row) => !row.trained) ? "; labels added later have their own" : "";
  return ` Threshold: ${score(trained.threshold)}${later}.`;
}

const mayEdit = () => session.learns && session.rights.includes("administer");

function row({ label, description, documents, trained, threshold }, decides) {
  const edit = () => editLabel({ label, documents });
  const title = nameOf(label) === label ? null : label;
  return tableRow(
    [
      el("a", { href: route("documents", { label }), title }, nameOf(label)),
      trained && decides === "per_label" && [" ", el("span", { class: "note" }, `threshold ${score(threshold)}`)],
      !trained && [" ", el("span", { class: "flag later" }, `added later, threshold ${score(threshold)}`)],
      description && el("p", { class: "note" }, description),
    ].flat(),
    documents,
    ...(mayEdit() ? [el("button", { type: "button", on: { click: edit }, "aria-label": `Edit ${nameOf(label)}` }, "Edit…")] : []),
  );
}
