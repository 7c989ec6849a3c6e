/** Create elements. Untrusted data becomes a text node or an attribute, never markup. */

import { nameOf } from "./names.js";

/** Return the element with this id. */
export const byId = (id) => document.getElementById(id);

/**
 * Create an HTML element.
 * @param {string} tag
 * @param {object} [properties] `class`, `on` (listeners by event) and `data`; anything else is an attribute, where
 *   `true` means present and `false`, `null` and `undefined` mean absent
 * @param {...(Node|string|number|null|false)} children strings become text nodes
 */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Create an SVG element, like `el`. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function fill(element, { on = {}, data = {}, ...attributes }, children) {
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  for (const [name, value] of Object.entries(data)) element.dataset[name] = value;
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** Return text for screen readers only. */
export const hidden = (text) => el("span", { class: "visually-hidden" }, text);

/** Return labels as chips; with `linked`, each links to its documents. */
export function chips(labels, { linked = false } = {}) {
  const content = (label) => (linked ? el("a", { href: route("documents", { label }) }, nameOf(label)) : nameOf(label));
  return el("ul", { class: "chips" }, labels.map((label) => el("li", { data: { label } }, content(label))));
}

/** Return rejected labels, struck through. */
export function rejectedChips(labels) {
  const properties = { class: "chips rejected", "aria-label": "Rejected labels" };
  return el("ul", properties, labels.map((label) => el("li", {}, nameOf(label))));
}

/** Return a table row with a header cell; numbers are right-aligned. */
export function tableRow(first, ...cells) {
  const cell = (value) => el("td", { class: typeof value === "number" ? "number" : null }, shown(value));
  return el("tr", {}, el("th", { scope: "row" }, first), cells.map(cell));
}

const shown = (value) => (typeof value === "number" ? value.toLocaleString("en") : value);

/** Return the address of a view, with an optional part and query. */
export function route(view, query = {}, part = null) {
  const search = new URLSearchParams(query).toString();
  return `#/${view}${part === null ? "" : `/${encodeURIComponent(part)}`}${search && `?${search}`}`;
}

/** Decode a part of an address; return it unchanged if the encoding is invalid. */
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Return a function that calls `work` once, `milliseconds` after its last call. */
export function debounced(work, milliseconds) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), milliseconds);
  };
}
