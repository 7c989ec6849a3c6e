/** The Tag view: tag a text and decide about its labels. */
import { post } from "./api.js";
import { suggestLabels } from "./complete.js";
import { Decisions } from "./decisions.js";
import { byId, debounced } from "./dom.js";
import { acceptFiles, readTextFile } from "./files.js";
import { count, counted, score } from "./format.js";
import { labelOf, nameOf } from "./names.js";
import { clearFailure, fail, say } from "./notice.js";
import { focusLabel, labelRows, linkLabelsAndNeighbours, paintDecisions, showPrediction } from "./results.js";
import { session } from "./session.js";

export const decisions = new Decisions();

/** The last text and its prediction; null before the first one. */
export let asked = null;

/** Fires `new` before a new text is tagged, `answer` after each prediction, `text` when the field changes. */
export const tagging = new EventTarget();

const field = byId("text");
let running = new AbortController();

export function startTag() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    askFromField();
  });
  field.addEventListener("input", textChanged);
  byId("clear").addEventListener("click", () => setText(""));
  acceptFiles(byId("ask"), byId("text-file"), openFile);
  startOptions();
  startAdding();
  byId("accept-all").addEventListener("click", acceptSuggested);
  decisions.addEventListener("change", () => paintDecisions(decisions));
  linkLabelsAndNeighbours();
}

/** Tag the text in the field, and focus the first label. */
export async function askFromField() {
  const text = field.value;
  if (!text.trim()) {
    field.focus();
    return fail(new Error("There is no text. Paste one, or drop a file."));
  }
  if (text !== asked?.text) {
    decisions.reset();
    tagging.dispatchEvent(new Event("new"));
  }
  if (await ask(text)) (labelRows()[0]?.querySelector(".accept") ?? byId("add-label")).focus();
}

/** Put a text into the field and tag it. */
export function tagText(text) {
  setText(text);
  return askFromField();
}

/** Tag a text and show the prediction; return it, or null after an error. */
export async function ask(text) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  byId("result").setAttribute("aria-busy", "true");
  try {
    const evidence = Math.min(100, session.k ?? 10);
    const prediction = await post("predict", { text, evidence, ...options() }, signal);
    clearFailure();
    asked = { text, prediction };
    show();
    return prediction;
  } catch (error) {
    fail(error);
    return null;
  } finally {
    if (!signal.aborted) byId("result").setAttribute("aria-busy", "false");
  }
}

/** Accept all suggested labels that are not rejected. */
export function acceptSuggested() {
  if (asked) decisions.acceptAll(asked.prediction.labels);
}

/** Return whether the text in the field differs from the tagged one. */
export const textIsStale = () => asked !== null && field.value !== asked.text;

function show() {
  const { prediction } = asked;
  byId("result-body").hidden = false;
  byId("result-summary").textContent =
    `${counted(prediction.labels.length, "label")} suggested, ${counted(prediction.neighbours.length, "neighbour")}.`
      .replace(/^no/, "No") +
    (prediction.same_text === null ? "" : ` Document ${prediction.same_text} has the same text, so its labels are used.`);
  showPrediction(prediction, decisions);
  tagging.dispatchEvent(new Event("answer"));
}

function setText(text) {
  field.value = text;
  field.scrollTop = 0;
  textChanged();
}

function textChanged() {
  const size = field.value.length;
  const limit = session.limits.characters;
  byId("text-size").textContent =
    size > limit ? `${count(size)} characters; the service accepts at most ${count(limit)}.`
    : size ? `${counted(size, "character")}.` : "No text yet.";
  tagging.dispatchEvent(new Event("text"));
}

async function openFile(file) {
  try {
    setText(await readTextFile(file));
    await askFromField();
  } catch (error) {
    fail(error);
  }
}

function options() {
  const how = byId("ask").elements.decide.value;
  const most = byId("top-k");
  return {
    threshold: how === "one" ? Number(byId("threshold").value) : null,
    per_label: how === "per-label",
    top_k: most.value && most.checkValidity() ? Number(most.value) : null,
  };
}

/** Tag the current text again when an option changes. */
function startOptions() {
  const again = debounced(() => asked && ask(asked.text), 200);
  const slider = byId("threshold");
  slider.addEventListener("input", () => {
    byId("threshold-value").textContent = score(Number(slider.value));
    byId("ask").elements.decide.value = "one";
    again();
  });
  byId("top-k").addEventListener("input", again);
  for (const radio of byId("ask").elements.decide) radio.addEventListener("change", again);
}

function startAdding() {
  const input = byId("add-label");
  const add = () => {
    const label = labelOf(input.value.trim());
    if (!label || !asked) return;
    input.value = "";
    decisions.add(label);
    showPrediction(asked.prediction, decisions);
    focusLabel(label);
    say(`Added ${nameOf(label)}.`);
  };
  suggestLabels(input, byId("add-options"), add);
  byId("add-form").addEventListener("submit", (event) => {
    event.preventDefault();
    add();
  });
}
