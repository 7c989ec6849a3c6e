/** The view Tag: ask about a text, decide about its labels, hand over to teaching. */
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

/** The text that was asked about last and what came back; null before the first answer. */
export let asked = null;

/** Fires `new` before another text is asked about, `answer` after each prediction, `text` when the field changes. */
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

/** Ask about the text in the field, and go to the first label. */
export async function askFromField() {
  const text = field.value;
  if (!text.trim()) {
    field.focus();
    return fail(new Error("There is no text yet: paste one, or drop a file."));
  }
  if (text !== asked?.text) {
    decisions.reset();
    tagging.dispatchEvent(new Event("new"));
  }
  if (await ask(text)) (labelRows()[0]?.querySelector(".accept") ?? byId("add-label")).focus();
}

/** Put a text into the field and ask about it. */
export function tagText(text) {
  setText(text);
  return askFromField();
}

/** Ask about a text and show what comes back; return the prediction, or null where none came. */
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

/** Accept what was suggested and not rejected. */
export function acceptSuggested() {
  if (asked) decisions.acceptAll(asked.prediction.labels);
}

/** Whether the field holds another text than the one that the labels are about. */
export const textIsStale = () => asked !== null && field.value !== asked.text;

function show() {
  const { prediction } = asked;
  byId("result-body").hidden = false;
  byId("result-summary").textContent =
    `${counted(prediction.labels.length, "label")} suggested, ${counted(prediction.neighbours.length, "neighbour")}.` +
    (prediction.same_text === null ? "" : ` The document ${prediction.same_text} has the same text: its labels count.`);
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
    size > limit ? `${count(size)} characters, more than the ${count(limit)} that the service takes.`
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

/** What is changed in the options holds at once for the text that is shown. */
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
