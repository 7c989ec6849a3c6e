/** Refit the model to the datastore while the old model keeps answering. */
import { get, post } from "./api.js";
import { byId } from "./dom.js";
import { counted } from "./format.js";
import { fail, say } from "./notice.js";
import { news, session, whyReadOnly } from "./session.js";
import { ask, asked } from "./tag.js";

const PAUSE = 1000; // milliseconds between two checks of a running refit
let shown = null; // last response of /v1/refit
let timer;

export function startRefit() {
  byId("refit-button").addEventListener("click", refit);
  for (const event of ["session", "stored"]) news.addEventListener(event, look);
}

async function refit() {
  if (shown?.state === "running") return say("A refit is already running.");
  try {
    follow(await post("refit", {}));
  } catch (error) {
    fail(error);
    look();
  }
}

/** Show the state of the refit to users who may teach. */
async function look() {
  clearTimeout(timer);
  if (whyReadOnly()) return paint(null);
  try {
    follow(await get("refit"));
  } catch (error) {
    if (error.status === 409) return paint(null); // this model cannot be refitted
    if (shown?.state === "running") timer = setTimeout(look, PAUSE);
  }
}

/** Show a status, check again while the refit runs, and tag the text again after the switch. */
function follow(status) {
  const ended = shown?.state === "running" && status.state !== "running";
  paint(status);
  clearTimeout(timer);
  if (status.state === "running") timer = setTimeout(look, PAUSE);
  if (!ended) return;
  if (status.state === "failed") fail(new Error(status.sentence));
  if (status.state === "done") say("Model refitted.");
  if (status.state === "done") news.dispatchEvent(new Event("refitted"));
  if (status.state === "done" && asked) ask(asked.text);
}

function paint(status) {
  shown = status;
  byId("refit").hidden = status === null;
  byId("refit-button").hidden = !session.rights.includes("administer");
  if (status === null) return;
  const running = status.state === "running";
  const changed = status.changed_documents; // null if the datastore is unavailable
  byId("refit-changes").textContent =
    changed === null ? "" : `${counted(changed, "document")} changed since the last training or refit.`.replace(/^no/, "No");
  byId("refit-button").setAttribute("aria-disabled", String(running)); // unlike disabled, this keeps the focus
  byId("refit-said").textContent = running ? `Refitting: ${status.stage}…` : status.sentence ?? "";
  const bar = byId("refit-progress");
  bar.hidden = !running;
  if (status.total && status.done !== null) bar.value = Math.min(1, status.done / status.total);
  else bar.removeAttribute("value");
}
