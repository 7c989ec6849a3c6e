/** Labels of one text as buttons to switch on and off, by mouse or by digit, and a field to add more. */
import { startAdding } from "./complete.js";
import { byId, el, hidden } from "./dom.js";
import { score } from "./format.js";
import { nameOf } from "./names.js";

const DIGITS = 9; // buttons that a digit switches

export class LabelPicker {
  #rows = []; // { label, score, suggested, on }
  #list;

  /** @param {HTMLUListElement} list @param {HTMLFormElement} form with an input and a list for suggestions */
  constructor(list, form) {
    this.#list = list;
    startAdding(form, (label) => this.add(label));
  }

  /** Show the labels of a prediction, with the suggested ones switched on. */
  show(scores) {
    this.#rows = scores.map(({ label, score: value, chosen }) => ({ label, score: value, suggested: chosen, on: chosen }));
    this.#paint();
  }

  /** Labels that are switched on. */
  get labels() {
    return this.#rows.filter((row) => row.on).map((row) => row.label);
  }

  /** Suggested labels that were switched off. */
  get rejected() {
    return this.#rows.filter((row) => row.suggested && !row.on).map((row) => row.label);
  }

  /** Switch the label at a position. */
  toggle(place) {
    if (!this.#rows[place]) return;
    this.#rows[place].on = !this.#rows[place].on;
    this.#paint();
    this.#list.querySelectorAll("button")[place].focus();
  }

  /** Switch a label on, and add it if it is not listed. */
  add(label) {
    const known = this.#rows.findIndex((row) => row.label === label);
    if (known >= 0) this.#rows[known].on = true;
    else this.#rows.push({ label, on: true });
    this.#paint();
  }

  #paint() {
    this.#list.replaceChildren(...this.#rows.map((row, place) => el("li", {}, this.#button(row, place))));
    if (!this.#rows.length) this.#list.append(el("li", { class: "note" }, "No label scores high enough to suggest."));
  }

  #button({ label, score: value, suggested, on }, place) {
    return el("button", {
      type: "button", class: suggested && !on ? "toggle rejected" : "toggle", "aria-pressed": String(on),
      on: { click: () => this.toggle(place) },
    },
    place < DIGITS && el("kbd", { "aria-hidden": "true" }, String(place + 1)),
    el("span", { class: "name" }, nameOf(label)),
    value !== undefined && el("span", { class: "number" }, score(value)),
    suggested && !on && hidden(", rejected"));
  }
}

/** Return the keys 1 to 9, which switch the labels of a picker. */
export function digitKeys(picker) {
  return Object.fromEntries(Array.from({ length: DIGITS }, (_, place) => [String(place + 1), () => picker.toggle(place)]));
}

/** Focus the field for another label in a form. */
export const focusAdder = (form) => () => byId(form).querySelector("input").focus();
