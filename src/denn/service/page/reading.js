/** The text of the Tag view: a field to edit it, or, once it is tagged, the text with highlighted words. */
import { byId, el } from "./dom.js";
import { highlights, wordsOf } from "./highlight.js";
import { nameOf } from "./names.js";

const STRONG = 0.25; // share of the strongest word's weight from which a word is highlighted strongly
const field = byId("text");
const shown = byId("text-shown");
let tagged = null; // the tagged text and its words
let highlighted = null; // the label whose words are highlighted

/** Show a tagged text for reading. */
export function readText(text) {
  if (tagged?.text !== text) tagged = { text, words: wordsOf(text) };
  highlighted = null;
  shown.replaceChildren(text);
  shown.scrollTop = 0;
  show(false);
}

/** Show the field, for editing. */
export function editText() {
  show(true);
  field.focus();
}

/** Return whether the text is in the field. */
export const isEditing = () => shown.hidden;

/** Highlight the words that support a label in the tagged text; without a label, highlight nothing. */
export function highlight(label, support) {
  if (!tagged || label === highlighted) return;
  highlighted = label;
  const parts = label === null ? [] : highlights(tagged.words, support);
  const strongest = Math.max(...parts.map(({ weight }) => weight));
  const content = [];
  let at = 0;
  for (const { begin, end, weight } of parts) {
    content.push(tagged.text.slice(at, begin));
    content.push(el("mark", { class: weight < STRONG * strongest ? "weak" : null }, tagged.text.slice(begin, end)));
    at = end;
  }
  shown.replaceChildren(...content, tagged.text.slice(at));
  byId("text-marks").textContent = parts.length ? `Highlighted: words for ${nameOf(label)}.` : "";
  reveal(shown.querySelector("mark:not(.weak)"));
}

/** Scroll the text, but not the page, to a word that is out of sight. */
function reveal(word) {
  if (!word) return;
  const [box, place] = [shown.getBoundingClientRect(), word.getBoundingClientRect()];
  if (place.top >= box.top && place.bottom <= box.bottom) return;
  shown.scrollTop += place.top - box.top - box.height / 3;
}

function show(editing) {
  for (const element of document.querySelectorAll(".when-editing")) element.hidden = !editing;
  for (const element of document.querySelectorAll(".when-reading")) element.hidden = editing;
  byId("text-marks").textContent = "";
}
