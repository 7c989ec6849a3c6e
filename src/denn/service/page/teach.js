/** Teaching: store the text with its labels, tag it again, and compare both predictions. */
import { post, SOURCE } from "./api.js";
import { undo } from "./confirm.js";
import { byId, chips, el, hidden, rejectedChips } from "./dom.js";
import { counted, score, signed } from "./format.js";
import { nameOf } from "./names.js";
import { say } from "./notice.js";
import { keyWouldHelp, news, stored, whyReadOnly } from "./session.js";
import { ask, asked, decisions, tagging, textIsStale } from "./tag.js";
import { Turn } from "./turn.js";

const SMALLEST = 0.005; // smaller changes of a score are not shown
let taught = null; // { id, text, change } with the number of the change that can be undone
const turn = new Turn(paint);

export function startTeach() {
  byId("teach").addEventListener("click", () => whyNot() ?? teach()); // the reason is below the button
  byId("undo").addEventListener("click", takeBack);
  decisions.addEventListener("change", paint);
  news.addEventListener("session", paint);
  for (const event of ["answer", "text"]) tagging.addEventListener(event, paint);
  tagging.addEventListener("new", forgetTaught);
  paint();
}

/** Teach the accepted and rejected labels, and show the effect. */
export async function teach() {
  const reason = whyNot();
  if (reason) return say(reason);
  await turn.run(async () => {
    const { text, prediction: before } = asked;
    const { accepted: labels, rejected } = decisions;
    const { ids: [id], change } = await post("documents", { documents: [{ text, labels, rejected }], source: SOURCE });
    taught = { id, text, change };
    stored();
    const after = await ask(text);
    if (after) showDifference(before, after, id);
  });
}

/** Undo the last teaching and tag the text again. */
export async function takeBack() {
  if (!taught) return say("There is nothing to undo.");
  await turn.run(async () => {
    const { change, text, id } = taught;
    if (!(await undo(change))) return;
    taught = null;
    stored();
    await ask(text);
    showEffect("Undone", `${id} is no longer in the datastore.`, []);
  });
}

function whyNot() {
  if (!asked) return "Tag a text first.";
  const readOnly = whyReadOnly();
  if (readOnly) return readOnly;
  if (taught?.text === asked.text) return "Already taught. Undo to change its labels.";
  if (textIsStale()) return "The text has changed. Tag it again first.";
  if (!decisions.accepted.length && !decisions.rejected.length) return "Accept, add or reject at least one label.";
  return turn.busy ? "Saving…" : null;
}

function paint() {
  const reason = whyNot();
  const { accepted, rejected } = decisions;
  byId("teach").setAttribute("aria-disabled", String(reason !== null)); // unlike disabled, it stays focusable
  byId("teach-why").textContent = reason ?? "";
  byId("read-only").hidden = whyReadOnly() === null;
  byId("read-only-why").textContent = whyReadOnly() ?? "";
  byId("teach-key").hidden = !keyWouldHelp();
  const against = rejected.length ? `, ${rejected.length} rejected` : "";
  byId("teach-what").textContent = `${counted(accepted.length, "label")} accepted${against}.`.replace(/^no/, "No");
  byId("teach-labels").replaceChildren(
    ...(accepted.length ? [chips(accepted)] : []), ...(rejected.length ? [rejectedChips(rejected)] : []));
}

function forgetTaught() {
  taught = null;
  byId("difference").hidden = true;
  byId("difference-summary").textContent = "";
}

function showDifference(before, after, id) {
  const rows = compare(before, after);
  const gained = rows.filter((row) => row.news === "gained").map((row) => nameOf(row.label));
  const lost = rows.filter((row) => row.news === "lost").map((row) => nameOf(row.label));
  const place = after.neighbours.findIndex((neighbour) => neighbour.id === id);
  const sentences = [
    `Stored as ${id}.`,
    gained.length && `Gained: ${gained.join(", ")}.`,
    lost.length && `Lost: ${lost.join(", ")}.`,
    !gained.length && !lost.length && "The suggested labels have not changed.",
    place === 0 && "It is now the nearest neighbour.",
    place > 0 && `It is now neighbour number ${place + 1}.`,
  ];
  showEffect("Taught", sentences.filter(Boolean).join(" "), rows);
}

/** Show what a change did, next to the button that reverts it. */
function showEffect(title, summary, rows) {
  byId("difference").hidden = false; // before its sentence, so that screen readers announce it
  byId("difference-title").textContent = title;
  byId("difference-summary").textContent = summary;
  if (document.activeElement === byId("undo")) byId("difference-title").focus({ preventScroll: true }); // it disappears
  byId("undo").hidden = taught === null;
  byId("difference-details").hidden = !rows.length;
  byId("difference-table").replaceChildren(table(rows));
  byId("difference").scrollIntoView({ block: "nearest" }); // the button to teach is far below
}

/** Return the differences between two predictions: gained and lost labels first, then the largest changes. */
export function compare(before, after) {
  const old = new Map(before.scores.map((row) => [row.label, row]));
  const now = new Map(after.scores.map((row) => [row.label, row]));
  const rows = [...new Set([...now.keys(), ...old.keys()])].map((label) => {
    const [was, is] = [old.get(label), now.get(label)];
    const change = (is?.score ?? 0) - (was?.score ?? 0);
    const news = is?.chosen && !was?.chosen ? "gained" : was?.chosen && !is?.chosen ? "lost" : "";
    return { label, was, is, change, news };
  });
  const weight = (row) => (row.news ? 1 : 0) + Math.abs(row.change) / 2;
  return rows.filter((row) => row.news || Math.abs(row.change) >= SMALLEST).sort((a, b) => weight(b) - weight(a));
}

function table(rows) {
  const absent = () => [el("span", { "aria-hidden": "true" }, "–"), hidden("not listed")];
  const cell = (row) => el("td", { class: "number" }, row ? score(row.score) : absent());
  const line = ({ label, was, is, change, news }) => el("tr", { class: news },
    el("th", { scope: "row" }, nameOf(label), news && [" ", el("span", { class: `flag ${news}` }, news)]),
    cell(was), cell(is), el("td", { class: "number" }, signed(change)));
  return el("table", { class: "table" },
    el("thead", {}, el("tr", {}, ["Label", "Before", "After", "Change"].map((name, place) =>
      el("th", { scope: "col", class: place ? "number" : null }, name)))),
    el("tbody", {}, rows.map(line)));
}
