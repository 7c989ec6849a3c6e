/** The Tag view: tag a text and decide about its labels. */
import { post } from "./api.js";
import { startAdding } from "./complete.js";
import { Decisions } from "./decisions.js";
import { byId, debounced } from "./dom.js";
import { acceptFiles, readTextFile } from "./files.js";
import { count, counted, score } from "./format.js";
import { clearFailure, fail } from "./notice.js";
import { editText, isEditing, readText } from "./reading.js";
import { focusLabel, forgetSelection, labelRows, linkLabelsAndEvidence, paintDecisions, showPrediction } from "./results.js";
import { news, session, whyReadOnly } from "./session.js";

export const decisions = new Decisions();

/** The last text and its prediction; null before the first one. */
export let asked = null;

/** Fires `new` before a new text, `answer` after each prediction, `text` when the field changes. */
export const tagging = new EventTarget();

const field = byId("text");
let running = new AbortController();

export function startTag() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    askFromField();
  });
  field.addEventListener("input", textChanged);
  byId("edit").addEventListener("click", editText);
  byId("clear").addEventListener("click", newText);
  acceptFiles(byId("ask"), byId("text-file"), openFile);
  startOptions();
  startAdding(byId("add-form"), addLabel);
  byId("accept-all").addEventListener("click", acceptSuggested);
  decisions.addEventListener("change", () => paintDecisions(decisions));
  linkLabelsAndEvidence();
  news.addEventListener("relabelled", askAgain);
  news.addEventListener("session", () => byId("view-tag").classList.toggle("read-only", whyReadOnly() !== null));
}

/** Clear the text and its labels, for a new text. */
export function newText() {
  running.abort();
  asked = null;
  begin();
  setText("");
  for (const part of ["result", "result-body", "evidence"]) byId(part).hidden = true;
  byId("start").hidden = false;
  editText();
}

/** Leave the field: show the tagged text again, unless it was edited. */
export function stopEditing() {
  field.blur();
  if (asked && isEditing() && !textIsStale()) show();
}

function begin() {
  decisions.reset();
  forgetSelection();
  tagging.dispatchEvent(new Event("new"));
}

/** Tag the text in the field, and focus the first label. */
export async function askFromField() {
  const text = field.value;
  if (!text.trim()) {
    field.focus();
    return fail(new Error("There is no text. Paste one, or drop a file."));
  }
  if (text !== asked?.text) begin();
  if (!(await ask(text))) return;
  const [first] = labelRows();
  if (first) focusLabel(first.dataset.label);
  else byId("add-label").focus();
}

/** Tag the text again after labels were merged: decisions about them would undo the merge. */
function askAgain() {
  if (!asked) return;
  decisions.reset();
  ask(asked.text);
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
  byId("start").hidden = true;
  byId("result").hidden = false;
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
  const { text, prediction } = asked;
  byId("result-body").hidden = false;
  byId("evidence").hidden = !session.neighbours;
  byId("result-summary").textContent = summary(prediction);
  if (!textIsStale()) readText(text);
  showPrediction(prediction, decisions);
  tagging.dispatchEvent(new Event("answer"));
}

function summary({ labels, familiarity, same_text: same }) {
  const sentences = [
    `${counted(labels.length, "label")} suggested.`.replace(/^no/, "No"),
    familiarity !== null && `Familiarity ${score(familiarity)}.`,
    same !== null && `Document ${same} has the same text, so its labels are used.`,
  ];
  return sentences.filter(Boolean).join(" ");
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
  const how = byId("options").elements.decide.value;
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
  byId("options").addEventListener("submit", (event) => event.preventDefault());
  const slider = byId("threshold");
  slider.addEventListener("input", () => {
    byId("threshold-value").textContent = score(Number(slider.value));
    byId("options").elements.decide.value = "one";
    again();
  });
  byId("top-k").addEventListener("input", again);
  for (const radio of byId("options").elements.decide) radio.addEventListener("change", again);
}

function addLabel(label) {
  if (!asked) return;
  decisions.add(label);
  showPrediction(asked.prediction, decisions);
  focusLabel(label);
}
