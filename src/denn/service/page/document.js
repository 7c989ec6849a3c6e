/** One document: show its text, edit its labels, remove or forget it. */
import { documentPath, get, lastChange, request, SOURCE } from "./api.js";
import { suggestLabels } from "./complete.js";
import { confirmed, undo } from "./confirm.js";
import { byId, el, hidden, route } from "./dom.js";
import { counted } from "./format.js";
import { labelOf, nameOf } from "./names.js";
import { fail, say } from "./notice.js";
import { forgotten, session, stored, whyReadOnly } from "./session.js";
import { tagText } from "./tag.js";

const place = byId("document");
let back = route("documents"); // address of the list
let fields = 0; // number of fields created, for unique ids

/** Open a document, and return its heading or null. */
export async function openDocument(id, list) {
  back = list;
  try {
    return show(await get(documentPath(id)));
  } catch (error) {
    fail(error);
    place.hidden = true;
    return null;
  }
}

function show({ id, text, labels, rejected }) {
  const heading = el("h2", { id: "document-title", tabindex: "-1" }, id);
  place.dataset.id = id;
  place.hidden = false;
  place.replaceChildren(el("div", {},
    el("a", { class: "back", href: back }, "← All documents"),
    heading,
    el("div", { class: "text" }, text || "This document has no text."),
    el("p", { class: "note" }, `${counted(text.length, "character")}.`),
    el("h3", {}, "Labels"),
    editor(id, labels, rejected),
    el("div", { class: "actions apart" },
      button("Tag this text", () => tagThis(text)),
      el("a", { class: "button", href: route("history", { id }) }, "History"),
      session.may_write && button("Remove…", () => remove(id)),
      session.may_write && button("Forget…", () => forget(id), "danger")),
    !session.may_write && el("p", { class: "note" }, whyReadOnly())));
  return heading;
}

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
  const take = () => {
    const label = labelOf(input.value.trim());
    input.value = "";
    if (label) add(label);
  };
  suggestLabels(input, options, take);
  const submit = (event) => {
    event.preventDefault();
    take();
  };
  return el("form", { class: "add", on: { submit } },
    el("label", { for: name }, "Add a label"),
    el("div", { class: "combo" }, input, options),
    el("button", { type: "submit" }, "Add"));
}

/** Save the labels; drop those of `decided` that are no longer set or rejected. */
async function patch(id, before, labels, decided, rejected) {
  const body = {
    add: [...labels].filter((label) => !before.includes(label)),
    drop: decided.filter((label) => !labels.has(label) && !rejected.has(label)),
    source: SOURCE,
  };
  await changing(async () => {
    const changed = await request("PATCH", documentPath(id), { body });
    stored();
    show(changed).focus();
    say(`Saved the labels of ${id}.`, await undoing(id, true));
  });
}

async function remove(id) {
  if (!(await confirmed(`Remove ${id}?`, "It will no longer be used as evidence. You can undo this.", "Remove"))) return;
  await changing(async () => {
    await request("DELETE", documentPath(id), { query: { source: SOURCE } });
    leave();
    say(`Removed ${id}.`, await undoing(id, false));
  });
}

async function forget(id) {
  const warning = "This deletes its text and labels from the datastore and the history. Its id cannot be used again. "
    + "You cannot undo this.";
  if (!(await confirmed(`Forget ${id}?`, warning, "Forget"))) return;
  await changing(async () => {
    await request("DELETE", documentPath(id), { query: { forget: true, source: SOURCE } });
    leave();
    forgotten(id);
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

function leave() {
  place.hidden = true;
  place.replaceChildren(); // a forgotten document must not remain in the page
  delete place.dataset.id;
  stored();
  location.hash = back;
}

/** Return an undo action for the last change of a document, if the history has one. */
async function undoing(id, reopen) {
  const number = await lastChange(id);
  if (number === null) return undefined;
  const run = () => changing(async () => {
    if (!(await undo(number))) return;
    stored();
    if (reopen && place.dataset.id === id) show(await get(documentPath(id)));
    say(`Restored ${id}.`);
  });
  return { label: "Undo", run };
}
