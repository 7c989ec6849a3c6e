/** Keyboard shortcuts of a view: single letters outside fields, and Ctrl+Enter everywhere in it. */
import { byId } from "./dom.js";

const FIELDS = "input, textarea, select, [contenteditable]";

/**
 * Let keys act while a view is shown.
 * @param {string} view id of its section
 * @param {Record<string, () => void>} keys by letter or digit; "Ctrl+Enter" also works in fields
 */
export function onKeys(view, keys) {
  document.addEventListener("keydown", (event) => {
    if (byId(view).hidden || event.isComposing || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.repeat) return; // a key that is held down must not decide about texts that nobody has read
    const strong = event.ctrlKey || event.metaKey;
    const name = strong ? `Ctrl+${event.key}` : event.key;
    if (!Object.hasOwn(keys, name)) return;
    if (!strong && (event.target.matches(FIELDS) || !byId("letters-on").checked)) return;
    event.preventDefault();
    keys[name]();
  });
}
