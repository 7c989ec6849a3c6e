/** The Audit view: documents whose labels look wrong, to correct or to confirm one by one. */
import { documentPath, get, post, request, SOURCE } from "./api.js";
import { undo } from "./confirm.js";
import { byId, chips, el, hidden, route } from "./dom.js";
import { counted, excerpt, score, when } from "./format.js";
import { nameOf } from "./names.js";
import { fail, say } from "./notice.js";
import { news, stored, whyReadOnly } from "./session.js";
import { Turn } from "./turn.js";
import { onKeys } from "./view-keys.js";

const PAUSE = 1000; // milliseconds between two checks of a running audit
const MOST = 100; // suspects to list
let shown = null; // last response of /v1/audit
let suspects = []; // still open ones, when the list was loaded
let place = 0; // of the suspect shown
let past = []; // decisions that can be taken back: { place, change } with the number of the change, or null
let accepted = []; // for each doubt about the suspect shown, whether to follow it
const turn = new Turn();
let timer;

export function startAudit() {
  const clicks = {
    "audit-begin": begin, "audit-accept": accept, "audit-keep": keep, "audit-skip": skip, "audit-back": back,
  };
  for (const [id, click] of Object.entries(clicks)) byId(id).addEventListener("click", click);
  const digits = Object.fromEntries(Array.from({ length: 9 }, (_, at) => [String(at + 1), () => toggle(at)]));
  onKeys("view-audit", { "Ctrl+Enter": accept, a: accept, r: keep, s: skip, u: back, ...digits });
  for (const event of ["session", "relabelled"]) news.addEventListener(event, () => (shown = null));
}

/** Open the view; keep the place in a list that was begun. */
export async function showAudit() {
  if (shown && past.length && place < suspects.length) paint();
  else await look();
}

async function begin() {
  const reason = whyReadOnly();
  if (reason) return say(reason);
  try {
    follow(await post("audit", {}));
  } catch (error) {
    fail(error);
    look();
  }
}

/** Load the state of the audit, and its suspects. */
async function look() {
  clearTimeout(timer);
  try {
    follow(await get("audit", { limit: MOST }));
  } catch (error) {
    if (error.status !== 409) timer = shown?.state === "running" ? setTimeout(look, PAUSE) : undefined;
    fail(error);
  }
}

function follow(status) {
  const ended = shown?.state === "running" && status.state !== "running";
  shown = status;
  clearTimeout(timer);
  if (status.state === "running") timer = setTimeout(look, PAUSE);
  else {
    suspects = status.suspects;
    place = 0;
    past = [];
  }
  paint();
  if (ended && status.state === "failed") fail(new Error(status.sentence));
  if (ended && status.state === "done" && !byId("view-audit").hidden) focusItem();
}

function paint() {
  const running = shown.state === "running";
  byId("audit-begin").setAttribute("aria-disabled", String(running || whyReadOnly() !== null));
  byId("audit-begin").textContent = shown.state === "never" ? "Start an audit" : "Audit again";
  byId("audit-why").textContent = whyReadOnly() ?? "";
  const bar = byId("audit-progress");
  bar.hidden = !running;
  if (shown.total && shown.done !== null) bar.value = Math.min(1, shown.done / shown.total);
  else bar.removeAttribute("value");
  byId("audit-status").textContent = status();
  const suspect = running ? null : suspects[place] ?? null;
  byId("audit-item").hidden = suspect === null;
  byId("audit-back").hidden = !past.length;
  if (suspect) paintSuspect(suspect);
}

function status() {
  if (shown.state === "running") return `Auditing: ${shown.stage}…`;
  if (shown.state === "failed") return shown.sentence;
  if (shown.state === "never") return "No audit since the service started.";
  const left = suspects.length - place;
  const more = shown.pending - suspects.length;
  if (!left && more > 0) return `All done here. Open this view again for ${counted(more, "more document")}.`;
  if (!left) return suspects.length ? "All done." : "No labels look wrong.";
  return `Audit of ${when(shown.ended)}: ${counted(left, "document")} to decide.`;
}

const doubtsOf = ({ add, drop }) => [
  ...add.map((doubt) => ({ ...doubt, verb: "Add" })), ...drop.map((doubt) => ({ ...doubt, verb: "Remove" })),
];

function paintSuspect(suspect) {
  const { id, text, labels, neighbours } = suspect;
  accepted = doubtsOf(suspect).map(() => true);
  byId("audit-text").textContent = text;
  byId("audit-text").scrollTop = 0;
  byId("audit-id").replaceChildren(el("a", { href: route("documents", {}, id) }, id));
  byId("audit-labels").replaceChildren(labels.length ? chips(labels) : el("p", { class: "note" }, "none"));
  byId("audit-neighbours").replaceChildren(...neighbours.map(neighbour));
  paintDoubts(suspect);
}

function neighbour({ id, similarity, labels, text }) {
  return el("li", { class: "neighbour" },
    el("div", { class: "neighbour-head" },
      el("a", { href: route("documents", {}, id) }, id), el("span", { class: "similarity" }, score(similarity))),
    el("p", { class: "snippet" }, excerpt(text)), chips(labels));
}

function paintDoubts(suspect) {
  byId("audit-doubts").replaceChildren(...doubtsOf(suspect).map(({ label, verb, score: value, words }, at) => el("li", {},
    el("button", {
      type: "button", class: "toggle", "aria-pressed": String(accepted[at]), on: { click: () => toggle(at) },
    },
    el("kbd", { "aria-hidden": "true" }, String(at + 1)), el("span", { class: "name" }, `${verb} ${nameOf(label)}`),
    el("span", { class: "number" }, score(value)), hidden(accepted[at] ? "" : ", not accepted")),
    words.length > 0 && el("span", { class: "note" }, ` words for it: ${words.map(({ word }) => word).join(", ")}`))));
}

function toggle(at) {
  if (byId("audit-item").hidden || at >= accepted.length) return;
  accepted[at] = !accepted[at];
  paintDoubts(suspects[place]);
  byId("audit-doubts").querySelectorAll("button")[at].focus();
}

/** Follow the doubts that are switched on, reject the others, and confirm the labels. */
const accept = () => decide(accepted);

/** Keep the labels as they are: reject all doubts. */
const keep = () => decide(accepted.map(() => false));

async function decide(followed) {
  const suspect = suspects[place];
  const reason = whyReadOnly();
  if (reason) return say(reason);
  if (!shown || turn.busy || !suspect || byId("audit-item").hidden) return;
  await turn.run(async () => {
    const doubts = doubtsOf(suspect);
    const named = (verb, wanted) =>
      doubts.filter((doubt, at) => doubt.verb === verb && followed[at] === wanted).map(({ label }) => label);
    const body = {
      add: named("Add", true), drop: named("Remove", true), reject: named("Add", false), confirm: true, source: SOURCE,
    };
    const { change } = await request("PATCH", documentPath(suspect.id), { body });
    past.push({ place, change });
    stored();
    const changed = body.add.length + body.drop.length;
    next();
    say(changed ? `Changed ${counted(changed, "label")} of ${suspect.id}.` : `Confirmed the labels of ${suspect.id}.`);
  });
}

function skip() {
  if (!shown || turn.busy || byId("audit-item").hidden) return;
  past.push({ place, change: null });
  next();
}

function next() {
  place += 1;
  paint();
  focusItem();
}

const focusItem = () => byId(byId("audit-item").hidden ? "audit-title" : "audit-text").focus();

/** Take the last decision back. */
async function back() {
  if (!shown || !past.length) return say("There is nothing to undo.");
  await turn.run(async () => {
    const last = past.at(-1);
    if (last.change !== null) {
      if (!(await undo(last.change))) return;
      stored();
    }
    past.pop();
    place = last.place;
    paint();
    focusItem();
    say("Undone.");
  });
}
