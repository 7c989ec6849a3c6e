/** The Documents view: a filtered list next to one document. */
import { get } from "./api.js";
import { suggestLabels } from "./complete.js";
import { closeDocument, openDocument } from "./document.js";
import { byId, chips, el, rejectedChips, route } from "./dom.js";
import { count, counted, excerpt } from "./format.js";
import { labelOf, typedFor } from "./names.js";
import { fail } from "./notice.js";
import { news } from "./session.js";

const PAGE = 50;
let filters = { label: "", text: "" };
let offset = 0;
let stale = true;
let running = new AbortController();

export function startDocuments() {
  byId("documents-form").addEventListener("submit", (event) => {
    event.preventDefault();
    apply({ label: labelOf(byId("documents-label").value.trim()), text: byId("documents-text").value });
  });
  suggestLabels(byId("documents-label"), byId("documents-label-options"), (label) => apply({ ...filters, label }));
  byId("documents-all").addEventListener("click", () => apply({ label: "", text: "" }));
  byId("documents-newer").addEventListener("click", () => load(Math.max(0, offset - PAGE)));
  byId("documents-older").addEventListener("click", () => load(offset + PAGE));
  news.addEventListener("session", () => (stale = true));
  news.addEventListener("stored", () => {
    stale = true;
    if (!byId("view-documents").hidden) load(offset);
  });
}

/**
 * Open the view with the id of a document or null, and filters in the query. Return the element to focus.
 */
export async function showDocuments(id, query) {
  byId("documents-layout").classList.toggle("opened", id !== null);
  if (id === null) {
    closeDocument();
    const given = { label: query.get("label") ?? "", text: query.get("text") ?? "" };
    if (given.label || given.text) use(given);
  }
  if (stale) load(offset);
  mark(id);
  if (id === null) return null;
  const heading = await openDocument(id, backAddress());
  mark(opened()); // the list may have arrived first
  return heading;
}

/** Filter the list, and put the filters into the address so that it can be shared. */
function apply(wanted) {
  use(wanted);
  history.replaceState(null, "", backAddress());
  byId("documents-layout").classList.remove("opened");
  closeDocument();
  mark(null);
  load(0);
}

function use(wanted) {
  if (wanted.label !== filters.label || wanted.text !== filters.text) {
    offset = 0;
    stale = true;
  }
  filters = wanted;
  byId("documents-label").value = typedFor(wanted.label);
  byId("documents-text").value = wanted.text;
}

function backAddress() {
  return route("documents", Object.fromEntries(Object.entries(filters).filter(([, value]) => value)));
}

async function load(from) {
  running.abort();
  running = new AbortController();
  try {
    const { total, documents } = await get("documents", { ...filters, offset: from, limit: PAGE }, running.signal);
    offset = from;
    stale = false;
    byId("documents-rows").replaceChildren(...documents.map(row));
    byId("documents-summary").textContent = summary(total, documents.length);
    byId("documents-newer").disabled = from === 0;
    byId("documents-older").disabled = from + documents.length >= total;
    mark(opened());
  } catch (error) {
    fail(error);
  }
}

function summary(total, here) {
  if (!total) return filters.label || filters.text ? "No documents match." : "The datastore is empty.";
  const part = here < total ? `${count(offset + 1)} to ${count(offset + here)} of ` : "";
  return `${part}${counted(total, "document")}, newest first.`;
}

function row({ id, text, labels, rejected }) {
  return el("li", { class: "row", data: { id } },
    el("a", { class: "row-id", href: route("documents", {}, id) }, id),
    el("p", { class: "snippet" }, excerpt(text)),
    chips(labels),
    rejected.length > 0 && rejectedChips(rejected));
}

const opened = () => byId("document").dataset.id ?? null;

function mark(id) {
  for (const row of byId("documents-rows").children) {
    const link = row.querySelector("a");
    if (row.dataset.id === id) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}
