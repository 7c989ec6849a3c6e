/** The Batch view: tag a file, look at its labels, and download it with them. */
import { RowError, tagAll } from "./batch-run.js";
import { decided, showTable, startBatchTable } from "./batch-table.js";
import { byId, el } from "./dom.js";
import { acceptFiles, decodeFile, download } from "./files.js";
import { count, counted, duration, excerpt } from "./format.js";
import { clearFailure, fail } from "./notice.js";
import { session } from "./session.js";

const SPOKEN = 10; // seconds between two progress announcements for screen readers
let job = null; // { name, content, file, texts, results, controller, started, spoken, skip }

export function startBatch() {
  startBatchTable();
  acceptFiles(byId("batch-drop"), byId("batch-file"), open);
  byId("batch-header").addEventListener("change", reread);
  byId("batch-column").addEventListener("change", restart);
  byId("batch-start").addEventListener("click", run);
  byId("batch-cancel").addEventListener("click", () => job.controller.abort());
  byId("batch-download").addEventListener("click", save);
  window.addEventListener("beforeunload", (event) => job?.controller && event.preventDefault());
}

/** Stop and forget the batch; while one runs, the browser asks before it leaves the page. */
export function forgetBatch() {
  job?.controller?.abort();
  job = null;
}

async function open(file) {
  job?.controller?.abort();
  try {
    job = { name: file.name, content: await decodeFile(file) };
    byId("batch-header").checked = true;
    await reread();
  } catch (error) {
    fail(error);
  }
}

/** Parse the content again after a new file or a change of the header option. */
async function reread() {
  const { readTexts } = await import("./tabular.js");
  try {
    job.file = readTexts(job.name, job.content, { header: byId("batch-header").checked });
  } catch (error) {
    byId("batch-job").hidden = true;
    return fail(new Error(`${job.name}: ${error.message}`));
  }
  clearFailure();
  const { columns, guess, hasHeader, about, size } = job.file;
  byId("batch-name").textContent = job.name;
  byId("batch-about").textContent = `${counted(size, "row")}, ${about}.`;
  byId("batch-header-line").hidden = !hasHeader;
  byId("batch-column").replaceChildren(...columns.map((name) => el("option", { selected: name === guess }, name)));
  byId("batch-preview").replaceChildren(preview(job.file));
  byId("batch-job").hidden = false;
  restart();
}

function preview(file) {
  const cell = (value) => el("td", {}, excerpt(value, 80));
  return el("table", { class: "table" },
    el("thead", {}, el("tr", {}, file.columns.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, file.preview().map((row) => el("tr", {}, row.map(cell)))));
}

function restart() {
  job.results = new Array(job.file.size).fill(undefined);
  job.skip = null;
  byId("batch-start").textContent = "Tag all rows";
  showTable(null);
  paint("Not started.");
}

/** Start, or continue after an error and skip the row that caused it. */
async function run() {
  if (job.skip !== null) job.results[job.skip] = null;
  const mine = job;
  mine.skip = null;
  mine.controller = new AbortController();
  mine.started = { time: performance.now(), done: finished(mine) };
  mine.spoken = performance.now();
  clearFailure();
  progress();
  try {
    mine.texts = mine.file.texts(byId("batch-column").value);
    await tagAll(mine.texts, mine.results, {
      limits: session.limits,
      signal: mine.controller.signal,
      onProgress: progress,
      onWait: (seconds) => progress(`The service is busy; retrying in ${counted(seconds, "second")}.`),
    });
    stop(mine, summary());
  } catch (error) {
    stopEarly(mine, error);
  }
}

function stopEarly(mine, error) {
  if (mine !== job) return; // another file was opened in the meantime
  const kept = `${count(finished(mine))} of ${counted(mine.file.size, "row")} done.`;
  if (error.name === "AbortError") return stop(mine, `Cancelled. ${kept}`);
  const row = error instanceof RowError ? error.row : error.firstRow;
  if (error instanceof RowError) mine.skip = row;
  const where = row === undefined ? "" : ` at ${mine.file.place(row)}`;
  fail(new Error(`Stopped${where}: ${error.message}`));
  stop(mine, `Stopped${where}. ${kept}`);
}

function stop(mine, message) {
  if (mine !== job) return;
  mine.controller = null;
  const without = mine.skip === null ? "" : ` without ${mine.file.place(mine.skip)}`;
  byId("batch-start").textContent = finished(mine) === mine.file.size ? "Tag all rows" : `Continue${without}`;
  paint(message);
  showTable(finished(mine) ? { texts: mine.texts, results: mine.results, place: mine.file.place } : null);
  byId("batch-spoken").textContent = message;
}

const finished = ({ results }) => results.filter((result) => result !== undefined).length;

function summary() {
  const skipped = job.results.filter((result) => result === null).length;
  const unfamiliar = job.results.filter((result) => result?.unfamiliar).length;
  const seconds = (performance.now() - job.started.time) / 1000;
  const flagged = unfamiliar ? `, ${count(unfamiliar)} unfamiliar` : "";
  const without = skipped ? ` ${counted(skipped, "row")} skipped.` : "";
  return `Done: ${counted(job.file.size, "row")} in ${duration(seconds)}${flagged}.${without}`;
}

function progress(note) {
  if (!job.controller) return;
  const done = finished(job);
  const seconds = (performance.now() - job.started.time) / 1000;
  const rate = (done - job.started.done) / seconds;
  const left = rate > 0 ? `, about ${duration((job.file.size - done) / rate)} left` : "";
  const message = typeof note === "string" ? note : `${count(done)} of ${counted(job.file.size, "row")}${left}.`;
  paint(message);
  if (performance.now() - job.spoken > 1000 * SPOKEN) {
    byId("batch-spoken").textContent = message;
    job.spoken = performance.now();
  }
}

function paint(message) {
  const done = finished(job);
  const running = Boolean(job.controller);
  byId("batch-progress").value = done / job.file.size;
  byId("batch-status").textContent = message;
  byId("batch-start").disabled = running || done === job.file.size;
  byId("batch-cancel").disabled = !running;
  byId("batch-download").disabled = done === 0;
  byId("batch-start").classList.toggle("primary", done < job.file.size);
  byId("batch-download").classList.toggle("primary", done === job.file.size);
  byId("batch-column").disabled = running;
  byId("batch-header").disabled = running;
}

function save() {
  const [, stem, ending] = /^(.*?)(\.[^.]*)?$/.exec(job.name);
  const type = job.file.hasHeader ? "text/csv" : "application/x-ndjson";
  download(`${stem}.tagged${ending ?? ""}`, job.file.write(job.results.map(decided)), type);
}
