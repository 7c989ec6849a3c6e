/** The History view: who changed what and when, with undo. */
import { get } from "./api.js";
import { undo } from "./confirm.js";
import { byId, el, route } from "./dom.js";
import { count, counted, when } from "./format.js";
import { fail, say } from "./notice.js";
import { news, session, stored } from "./session.js";

const PAGE = 50;
const MOST = 1000; // the service lists no more
const DONE = { add: "Added", remove: "Removed", relabel: "Changed the labels of", confirm: "Confirmed the labels of", forget: "Forgot" };
let shown = { id: "", limit: PAGE };
let running = new AbortController();

export function startHistory() {
  byId("history-more").addEventListener("click", () => load({ ...shown, limit: Math.min(MOST, shown.limit + PAGE) }));
  byId("history-all").addEventListener("click", () => (location.hash = route("history")));
  for (const event of ["stored", "session"]) {
    news.addEventListener(event, () => byId("view-history").hidden || load(shown));
  }
}

/** Open the view, for all documents or for the one in the query. */
export function showHistory(query) {
  const id = query.get("id") ?? "";
  return load({ id, limit: id === shown.id ? shown.limit : PAGE });
}

async function load(wanted) {
  running.abort();
  running = new AbortController();
  try {
    const { changes } = await get("history", wanted, running.signal);
    const before = wanted.id === shown.id ? byId("history-rows").children.length : 0;
    const asked = wanted.limit > shown.limit && before > 0;
    shown = wanted;
    byId("history-rows").replaceChildren(...changes.map(row));
    byId("history-table").hidden = !changes.length;
    byId("history-more").hidden = changes.length < wanted.limit || wanted.limit === MOST;
    byId("history-all").hidden = !wanted.id;
    byId("history-summary").textContent = summary(changes.length, wanted);
    if (asked) byId("history-rows").children[before]?.querySelector("a, button")?.focus(); // the first new row
  } catch (error) {
    fail(error);
  }
}

function summary(changes, { id, limit }) {
  const of = id ? ` of ${id}` : "";
  if (!changes) return `No changes${of} yet.`;
  return changes === limit ? `The last ${counted(changes, "change")}${of}.` : `${counted(changes, "change")}${of}, newest first.`;
}

function row(change) {
  const { number, time, undone } = change;
  return el("tr", { class: undone ? "undone" : null, data: { number } },
    el("th", { scope: "row", class: "number" }, String(number)),
    el("td", {}, el("time", { datetime: time }, when(time))),
    el("td", {}, what(change), undone && [" ", el("span", { class: "flag" }, "undone")]),
    el("td", {}, by(change)),
    el("td", {}, action(change)));
}

/** Describe a change, with links to its first documents. */
function what({ action, documents, ids, undoes }) {
  const verb = action === "undo" ? `Undid change ${undoes} to` : DONE[action] ?? action;
  const links = ids.flatMap((id, place) => [place ? ", " : " ", el("a", { href: route("documents", {}, id) }, id)]);
  if (!links.length) return `${verb} ${counted(documents, "document")}`;
  const more = documents - ids.length;
  return [verb, ...(documents > 1 ? [` ${counted(documents, "document")}:`] : []), ...links,
    ...(more > 0 ? [` and ${count(more)} more`] : [])];
}

/** Return the author: the key, and where the change was made. */
function by({ source, author = source.split(": ")[0] }) {
  const place = source === author ? "" : source.slice(author.length).replace(/^: /, "");
  return [author || "training", place && el("span", { class: "note" }, ` ${place}`)].filter(Boolean);
}

function action({ number, action, undone, undoable }) {
  if (!session.may_write || undone) return "";
  if (!undoable) return el("span", { class: "note" }, "permanent");
  const redo = action === "undo";
  const click = () => takeBack(number, redo);
  return el("button", { type: "button", on: { click }, "aria-label": `${redo ? "Redo" : "Undo"}: change ${number}` },
    redo ? "Redo" : "Undo");
}

async function takeBack(number, redo) {
  try {
    const done = await undo(number);
    if (!done) return;
    stored(); // also loads this list again
    byId("history-title").focus(); // the button is gone
    say(`${redo ? "Redone" : "Undone"}: ${counted(done.documents, "document")} restored.`);
  } catch (error) {
    fail(error);
  }
}
