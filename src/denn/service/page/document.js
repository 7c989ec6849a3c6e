/** One document: show its text, edit its labels, remove or forget it. */
import { documentPath, get, request, SOURCE } from "./api.js";
import { startAdding } from "./complete.js";
import { confirmed, undo } from "./confirm.js";
import { byId, el, hidden, route } from "./dom.js";
import { counted } from "./format.js";
import { nameOf } from "./names.js";
import { fail, say } from "./notice.js";
import { forgotten, session, stored, whyReadOnly } from "./session.js";
import { tagText } from "./tag.js";

const place = byId("document");
let back = route("documents"); // address of the list
let fields = 0; // number of fields created, for unique ids
let opening = new AbortController();

/** Open a document, and return its heading; null if there is none or another one was opened meanwhile. */
export async function openDocument(id, list) {
  opening.abort();
  opening = new AbortController();
  back = list;
  delete place.dataset.id; // what is still shown is no longer the one to open
  try {
    return show(await get(documentPath(id), {}, opening.signal));
  } catch (error) {
    if (error.status === 404) return showAbsent(id);
    fail(error);
    if (error.name !== "AbortError") closeDocument();
    return null;
  }
}

/** Remove the document from the page, and do not show one that is still being loaded. */
export function closeDocument() {
  opening.abort();
  place.hidden = true;
  place.replaceChildren();
  delete place.dataset.id;
}

function show({ id, text, labels, rejected }) {
  return fill(id,
    el("div", { class: "text" }, text || "This document has no text."),
    el("p", { class: "note" }, `${counted(text.length, "character")}.`),
    el("h3", {}, "Labels"),
    editor(id, labels, rejected),
    el("div", { class: "actions apart" },
      button("Tag this text", () => tagThis(text)),
      historyLink(id),
      session.may_write && button("Remove…", () => remove(id)),
      session.may_write && forgetButton(id)),
    !session.may_write && el("p", { class: "note" }, whyReadOnly()));
}

/** Show what can be done about a document that is not stored: the history may still contain it. */
function showAbsent(id) {
  return fill(id,
    el("p", {}, "The datastore does not contain this document."),
    el("div", { class: "actions apart" }, historyLink(id), session.may_write && forgetButton(id)));
}

function fill(id, ...content) {
  const heading = el("h2", { id: "document-title", tabindex: "-1" }, id);
  place.dataset.id = id;
  place.hidden = false;
  place.replaceChildren(el("div", {}, el("a", { class: "back", href: back }, "← All documents"), heading, ...content));
  return heading;
}

const historyLink = (id) => el("a", { class: "button", href: route("history", { id }) }, "History");
const forgetButton = (id) => button("Forget…", () => forget(id), "danger");
const button = (name, click, kind = null) => el("button", { type: "button", class: kind, on: { click } }, name);

function tagThis(text) {
  location.hash = route("tag");
  tagText(text);
}

/** Return an editor for labels and rejected labels. */
function editor(id, before, rejectedBefore) {
  const labels = new Set(before);
  const rejected = new Set(rejectedBefore);
  const list = el("ul", { class: "chips editable" });
  const struck = el("ul", { class: "chips editable rejected", "aria-label": "Rejected labels" });
  const decided = [...before, ...rejectedBefore];
  const save = button("Save labels", () => patch(id, before, labels, decided, rejected), "primary");
  const paint = () => {
    list.replaceChildren(...[...labels].map((label) => chip(label, `Remove ${nameOf(label)}`, labels)));
    if (!labels.size) list.append(el("li", { class: "note" }, "none"));
    struck.replaceChildren(...[...rejected].map((label) => chip(label, `Stop rejecting ${nameOf(label)}`, rejected)));
    struck.hidden = !rejected.size;
    save.disabled = same(before, labels) && same(rejectedBefore, rejected);
  };
  const change = (work) => {
    work();
    paint();
  };
  const chip = (label, does, from) => el("li", {},
    el("a", { href: route("documents", { label }) }, nameOf(label)),
    session.may_write && el("button", { type: "button", class: "quiet", on: { click: () => drop(label, from) } },
      el("span", { "aria-hidden": "true" }, "✕"), hidden(does)));
  const drop = (label, from) => {
    change(() => from.delete(label));
    (list.querySelector("button") ?? save).focus();
  };
  const add = (label) => change(() => {
    rejected.delete(label);
    labels.add(label);
  });
  paint();
  if (!session.may_write) return el("div", {}, list, struck);
  return el("div", {}, list, struck, adder(add), el("div", { class: "actions" }, save));
}

const same = (before, after) => before.length === after.size && before.every((label) => after.has(label));

function adder(add) {
  const name = `document-add-${(fields += 1)}`;
  const input = el("input", { type: "text", id: name, autocomplete: "off", placeholder: "known or new" });
  const options = el("ul", { class: "listbox", id: `${name}-options`, hidden: true });
  const form = el("form", { class: "add" },
    el("label", { for: name }, "Add a label"),
    el("div", { class: "combo" }, input, options),
    el("button", { type: "submit" }, "Add"));
  startAdding(form, add);
  return form;
}

/** Save the labels; drop those of `decided` that are no longer set or rejected. */
async function patch(id, before, labels, decided, rejected) {
  const body = {
    add: [...labels].filter((label) => !before.includes(label)),
    drop: decided.filter((label) => !labels.has(label) && !rejected.has(label)),
    source: SOURCE,
  };
  await changing(async () => {
    const { change, ...changed } = await request("PATCH", documentPath(id), { body });
    stored();
    if (place.dataset.id === id) show(changed).focus(); // not if another one was opened
    say(`Saved the labels of ${id}.`, undoing(id, change));
  });
}

async function remove(id) {
  if (!(await confirmed(`Remove ${id}?`, "It will no longer be used as evidence. You can undo this.", "Remove"))) return;
  await changing(async () => {
    const { change } = await request("DELETE", documentPath(id), { query: { source: SOURCE } });
    stored();
    leave(id);
    say(`Removed ${id}.`, undoing(id, change));
  });
}

async function forget(id) {
  const warning = "This deletes its text and labels from the datastore and the history. Its id cannot be used again. "
    + "You cannot undo this.";
  if (!(await confirmed(`Forget ${id}?`, warning, "Forget"))) return;
  await changing(async () => {
    await request("DELETE", documentPath(id), { query: { forget: true, source: SOURCE } });
    forgotten(id);
    leave(id);
    say(`Forgot ${id}.`);
  });
}

async function changing(work) {
  try {
    await work();
  } catch (error) {
    fail(error);
  }
}

/** Return to the list, unless another document or view was opened meanwhile. */
function leave(id) {
  if (place.dataset.id !== id) return;
  closeDocument(); // a forgotten document must not remain in the page
  if (!byId("view-documents").hidden) location.hash = back;
}

/** Return an action that undoes a change of a document; none if nothing changed. */
function undoing(id, change) {
  if (change === null) return undefined;
  const run = () => changing(async () => {
    if (!(await undo(change))) return;
    stored();
    if (place.dataset.id === id) await openDocument(id, back);
    say(`Restored ${id}.`);
  });
  return { label: "Undo", run };
}
