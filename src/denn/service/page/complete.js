/** A text field that suggests known labels, following the ARIA combobox pattern. */
import { get } from "./api.js";
import { debounced, el } from "./dom.js";
import { counted } from "./format.js";
import { labelOf, nameOf, typedFor } from "./names.js";

const SHOWN = 8;

/**
 * Let a form add labels, known or new.
 * @param {HTMLFormElement} form with a field and an empty list for the suggestions
 * @param {(label: string) => void} add called with each label
 */
export function startAdding(form, add) {
  const input = form.querySelector("input");
  const take = () => {
    const label = labelOf(input.value.trim());
    input.value = "";
    if (label) add(label);
  };
  suggestLabels(input, form.querySelector("ul"), take);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    take();
  });
}

/**
 * Make a field suggest labels.
 * @param {HTMLInputElement} input
 * @param {HTMLUListElement} list an empty list for the suggestions
 * @param {(label: string) => void} pick called with the selected suggestion
 */
export function suggestLabels(input, list, pick) {
  let options = [];
  let active = -1;
  let controller = new AbortController();

  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Known labels");
  for (const [name, value] of Object.entries({
    role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id,
  })) input.setAttribute(name, value);

  function close() {
    controller.abort();
    options = [];
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    activate(-1);
  }

  function activate(place) {
    active = place;
    options.forEach((option, index) => option.setAttribute("aria-selected", index === place));
    if (place < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", options[place].id);
    options[place]?.scrollIntoView({ block: "nearest" });
  }

  function choose(option) {
    const { label } = option.dataset;
    input.value = typedFor(label);
    close();
    pick(label);
  }

  function show(labels) {
    options = labels.map(({ label, documents }, place) => {
      const option = el("li", { role: "option", id: `${list.id}-${place}`, data: { label } },
        el("span", {}, nameOf(label)), el("span", { class: "note" }, counted(documents, "document")));
      option.addEventListener("pointerdown", (event) => event.preventDefault()); // keep the focus in the field
      option.addEventListener("click", () => choose(option));
      return option;
    });
    list.replaceChildren(...options);
    list.hidden = !options.length;
    input.setAttribute("aria-expanded", String(options.length > 0));
    list.classList.remove("up");
    list.classList.toggle("up", list.getBoundingClientRect().bottom > innerHeight);
    list.scrollIntoView({ block: "nearest" }); // on narrow screens, it is part of the page
    activate(-1);
  }

  const look = debounced(async () => {
    controller.abort();
    controller = new AbortController();
    const query = input.value.trim();
    if (!query || document.activeElement !== input) return close();
    try {
      const { labels } = await get("labels", { query, limit: SHOWN }, controller.signal);
      if (input.value.trim() === query) show(labels); // not if the label was added meanwhile
    } catch {
      // The field also works without suggestions.
    }
  }, 120);

  input.addEventListener("input", look);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const from = step < 0 ? Math.max(active, 0) : active; // from the field, up goes to the last option
    if (step && options.length) activate((from + step + options.length) % options.length);
    else if (event.key === "Enter" && active >= 0) choose(options[active]);
    else if (event.key === "Escape" && options.length) close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
