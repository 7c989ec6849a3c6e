/** The Queue view: go through texts one by one, the most instructive first; accept, correct or skip their labels. */
import { documentPath, post, request, SOURCE } from "./api.js";
import { undo } from "./confirm.js";
import { byId, route } from "./dom.js";
import { acceptFiles, decodeFile } from "./files.js";
import { count, counted } from "./format.js";
import { LabelPicker, digitKeys, focusAdder } from "./label-picker.js";
import { fail, say } from "./notice.js";
import { keepQueue, keptQueue, ranked, unlabelledDocuments } from "./queue-store.js";
import { news, session, stored, whyReadOnly } from "./session.js";
import { tagText } from "./tag.js";
import { Turn } from "./turn.js";
import { onKeys } from "./view-keys.js";

let queue = null; // { items, order }: items by rank, and the positions of decided ones, oldest first
let current = null; // the item shown
const turn = new Turn();
let asking = new AbortController();
let ranking = new AbortController();
let picker;

export function startQueue() {
  picker = new LabelPicker(byId("queue-labels"), byId("queue-add"));
  byId("queue-start").addEventListener("submit", (event) => {
    event.preventDefault();
    const texts = byId("queue-texts").value.split("\n").map((text) => text.trim()).filter(Boolean);
    begin(texts.map((text) => ({ text })), "There are no texts. Paste some, one per line, or open a file.");
  });
  acceptFiles(byId("queue-start"), byId("queue-file"), openFile);
  const clicks = {
    "queue-unlabelled": takeUnlabelled, "queue-cancel": cancel, "queue-save": save, "queue-skip": skip, "queue-back": back,
    "queue-tag": openInTag, "queue-again": again, "queue-close": close,
  };
  for (const [id, click] of Object.entries(clicks)) byId(id).addEventListener("click", click);
  onKeys("view-queue", {
    "Ctrl+Enter": save, a: save, s: skip, u: back, o: openInTag, n: focusAdder("queue-add"), ...digitKeys(picker),
  });
  news.addEventListener("session", () => {
    queue ??= keptQueue(); // it belongs to a model, whose name is known now
    paintAccess();
  });
  news.addEventListener("relabelled", () => current && !turn.busy && suggest(current));
  news.addEventListener("forgotten", ({ detail }) => leaveOut(detail));
}

/** Open the view, and continue where the queue stood. */
export function showQueue() {
  paintAccess();
  paint();
  return current && !byId("queue-item").hidden ? byId("queue-text") : null;
}

async function openFile(file) {
  try {
    const content = await decodeFile(file);
    const { readTexts } = await import("./tabular.js");
    const isTable = /\.(csv|tsv|jsonl|ndjson)$/i.test(file.name);
    const texts = isTable ? textsOf(readTexts(file.name, content)) : content.split(/\r?\n/);
    await begin(texts.map((text) => ({ text })).filter(({ text }) => text.trim()), `${file.name} has no texts.`);
  } catch (error) {
    fail(new Error(`${file.name}: ${error.message}`));
  }
}

const textsOf = (file) => file.texts(file.guess);

async function takeUnlabelled() {
  try {
    await begin(await unlabelledDocuments(), "All stored documents have labels.");
  } catch (error) {
    fail(error);
  }
}

/** Rank items and start a new queue with them. */
async function begin(items, whenNone) {
  if (turn.busy) return;
  if (!items.length) return fail(new Error(whenNone));
  const most = session.limits.characters;
  const short = items.filter(({ text }) => text.length <= most);
  const long = items.length - short.length;
  if (!short.length) return fail(new Error(`All texts have more than ${count(most)} characters.`));
  await turn.run(async () => {
    ranking = new AbortController();
    const tell = (message) => (byId("queue-ranking").textContent = message);
    byId("queue-cancel").hidden = false;
    try {
      const items = await ranked(short, {
        signal: ranking.signal,
        onProgress: (done) => tell(`Ranking: ${count(done)} of ${counted(short.length, "text")} done…`),
        onWait: (seconds) => tell(`The service is busy; retrying in ${counted(seconds, "second")}.`),
      });
      queue = { items, order: [] };
    } finally {
      byId("queue-cancel").hidden = true;
      tell("");
    }
    byId("queue-texts").value = "";
    if (long) say(`Left out ${counted(long, "text")} with more than ${count(most)} characters.`);
    keep();
    paint();
    byId("queue-text").focus();
  });
}

/** Stop ranking; the texts stay in the field. */
function cancel() {
  ranking.abort();
  byId("queue-texts").focus(); // the button is gone
}

function keep() {
  if (!keepQueue(queue)) say("This queue is too large to be kept: do not reload the page before you are done.");
}

const isOpen = (item) => !item.state;

/** Show the next open item with a fresh prediction, or the summary at the end. */
function paint() {
  byId("queue-start").hidden = queue !== null;
  byId("queue-work").hidden = queue === null;
  if (!queue) return;
  const { items } = queue;
  const skipped = items.filter(({ state }) => state === "skipped").length;
  const done = items.length - items.filter(isOpen).length;
  byId("queue-progress").value = done / items.length;
  byId("queue-status").textContent = `${count(done)} of ${counted(items.length, "text")} done, ${count(skipped)} skipped.`;
  byId("queue-back").setAttribute("aria-disabled", String(!queue.order.length));
  byId("queue-again").hidden = done < items.length || !skipped;
  const next = items.find(isOpen) ?? null;
  byId("queue-item").hidden = next === null;
  byId("queue-end").hidden = next !== null;
  if (next === current) return;
  current = next;
  if (!next) return asking.abort();
  byId("queue-text").textContent = next.text;
  byId("queue-text").scrollTop = 0;
  suggest(next);
}

/** Suggest labels for an item; meanwhile it can be skipped, but not saved. */
async function suggest({ text, id = null }) {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  const item = byId("queue-item");
  item.setAttribute("aria-busy", "true");
  picker.show([]);
  try {
    const { scores, unfamiliar } = await post("predict", { text, id, evidence: 0 }, signal);
    picker.show(scores);
    byId("queue-unfamiliar").textContent = unfamiliar ? "Unfamiliar text: no stored document is similar." : "";
  } catch (error) {
    fail(error);
  } finally {
    if (!signal.aborted) item.setAttribute("aria-busy", "false");
  }
}

function paintAccess() {
  const reason = whyReadOnly();
  byId("queue-save").setAttribute("aria-disabled", String(reason !== null));
  byId("queue-why").textContent = reason ?? "";
}

/** Store the labels that are switched on, and the rejected ones, and go on. */
async function save() {
  const reason = whyReadOnly();
  if (reason) return say(reason);
  if (!current || byId("queue-item").getAttribute("aria-busy") === "true") return;
  await turn.run(async () => {
    const { labels, rejected } = picker;
    const { text, id } = current;
    if (!labels.length && !rejected.length) throw new Error("Switch on at least one label, or skip the text.");
    if (id === undefined) {
      const { ids, change } = await post("documents", { documents: [{ text, labels, rejected }], source: SOURCE });
      Object.assign(current, { saved: ids[0], change });
    } else { // it had no labels, so adding them keeps what others have added since
      const body = { add: labels, reject: rejected, source: SOURCE };
      const { change } = await request("PATCH", documentPath(id), { body });
      Object.assign(current, { saved: id, change });
    }
    stored();
    decide("saved");
    say(`Saved ${counted(labels.length, "label")} as ${queue.items[queue.order.at(-1)].saved}.`);
  });
}

async function skip() {
  if (current) await turn.run(() => decide("skipped"));
}

function decide(state) {
  current.state = state;
  queue.order.push(queue.items.indexOf(current));
  keep();
  paint();
  byId(byId("queue-item").hidden ? "queue-end" : "queue-text").focus();
}

/** Take the last decision back, and undo what it stored. */
async function back() {
  if (!queue?.order.length) return say("There is nothing to undo.");
  await turn.run(async () => {
    const item = queue.items[queue.order.at(-1)];
    if (item.state === "saved") {
      if ((item.change ?? null) !== null && !(await undo(item.change))) return;
      stored();
    }
    queue.order.pop();
    for (const name of ["state", "saved", "change"]) delete item[name];
    current = null;
    keep();
    paint(); // items are decided in order, so this one comes next
    byId("queue-text").focus();
    say("Undone.");
  });
}

/** Offer the skipped texts again. */
function again() {
  queue = { items: queue.items.filter(({ state }) => state === "skipped").map(({ text, id }) => ({ text, id })), order: [] };
  current = null;
  keep();
  paint();
  byId("queue-text").focus();
}

function close() {
  if (turn.busy) return;
  drop();
  byId("queue-title").focus();
}

function drop() {
  queue = current = null;
  keepQueue(null);
  paint();
}

/** Leave out a stored document that was forgotten. */
function leaveOut(id) {
  if (!queue?.items.some((item) => [item.id, item.saved].includes(id))) return;
  const decided = queue.order.map((place) => queue.items[place]);
  queue.items = queue.items.filter((item) => ![item.id, item.saved].includes(id));
  queue.order = decided.map((item) => queue.items.indexOf(item)).filter((place) => place >= 0);
  if (!queue.items.length) return drop();
  keep();
  paint();
}

function openInTag() {
  if (!current) return;
  location.hash = route("tag");
  tagText(current.text);
}
