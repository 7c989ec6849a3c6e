/** Keyboard shortcuts of a view: single letters outside fields, and Ctrl+Enter everywhere in it. */
import { byId } from "./dom.js";

/** Return whether an element takes letters as its text. */
export const takesLetters = (element) => element.matches("input, textarea, select, [contenteditable]");

/** Return whether a key belongs to an input method or a dialog instead of the view. */
export const isElsewhere = (event) => event.isComposing || document.querySelector("dialog[open]") !== null;

/**
 * Let keys act while a view is shown.
 * @param {string} view id of its section
 * @param {Record<string, () => void>} keys by letter or digit; "Ctrl+Enter" also works in fields
 */
export function onKeys(view, keys) {
  document.addEventListener("keydown", (event) => {
    if (byId(view).hidden || event.altKey || isElsewhere(event)) return;
    if (event.repeat) return; // a key that is held down must not decide about texts that nobody has read
    const strong = event.ctrlKey || event.metaKey;
    const name = strong ? `Ctrl+${event.key}` : event.key;
    if (!Object.hasOwn(keys, name)) return;
    if (!strong && (takesLetters(event.target) || !byId("letters-on").checked)) return;
    event.preventDefault();
    keys[name]();
  });
}
