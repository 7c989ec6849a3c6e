/** Keyboard shortcuts for tagging. */
import { byId } from "./dom.js";
import { say } from "./notice.js";
import { editText } from "./reading.js";
import { focusLabel, labelRows, selectedRow, toggleEvidence } from "./results.js";
import { whyReadOnly } from "./session.js";
import { acceptSuggested, askFromField, decisions, newText, stopEditing } from "./tag.js";
import { takeBack, teach } from "./teach.js";
import { isElsewhere, takesLetters } from "./view-keys.js";

const SETTING = "denn-letters";

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  a: () => decide("accepted"),
  r: () => decide("rejected"),
  A: acceptSuggested,
  o: openSupport,
  n: () => byId("add-label").focus(),
  t: teach,
  u: takeBack,
  e: editText,
  c: newText,
  "?": () => byId("help").showModal(),
};

const TEACHING = "arAntu";

export function startShortcuts() {
  document.addEventListener("keydown", pressed);
  byId("open-help").addEventListener("click", KEYS["?"]);
  const letters = byId("letters-on");
  letters.checked = localStorage.getItem(SETTING) !== "off";
  letters.addEventListener("change", () => localStorage.setItem(SETTING, letters.checked ? "on" : "off"));
}

function pressed(event) {
  const { key, target } = event;
  if (isElsewhere(event)) return;
  const inTag = !byId("view-tag").hidden;
  if (inTag && key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    return askFromField();
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (takesLetters(target)) return key === "Escape" && inTag ? leave(target) : undefined;
  const arrow = key.startsWith("Arrow");
  if (arrow ? !target.closest(".labels") : !byId("letters-on").checked) return;
  if (!Object.hasOwn(KEYS, key) || !(inTag || key === "?")) return;
  if (event.repeat && !arrow && !"jk".includes(key)) return;
  event.preventDefault();
  if (TEACHING.includes(key) && whyReadOnly()) return say(whyReadOnly());
  KEYS[key]();
}

/** Move the focus from a field to the labels, where shortcuts work. */
function leave(field) {
  field.blur();
  if (field.id === "text") stopEditing();
  if (selectedRow()) focusLabel(selectedRow().dataset.label);
}

function move(step) {
  const rows = labelRows();
  const place = rows.indexOf(selectedRow());
  const next = place < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, place + step));
  if (rows[next]) focusLabel(rows[next].dataset.label);
}

/** Set the decision about the focused label; without one, focus the first. */
function decide(state) {
  const row = document.activeElement.closest(".label-row");
  if (row) decisions.toggle(row.dataset.label, state);
  else move(0);
}

function openSupport() {
  if (selectedRow()) toggleEvidence(selectedRow());
}
