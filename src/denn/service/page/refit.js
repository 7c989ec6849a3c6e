/** Refitting: the model learns again from the datastore while the old one answers. */
import { get, post } from "./api.js";
import { byId } from "./dom.js";
import { counted } from "./format.js";
import { fail, say } from "./notice.js";
import { news, whyReadOnly } from "./session.js";
import { ask, asked } from "./tag.js";

const PAUSE = 1000; // milliseconds between two looks at a refit that is running
let shown = null; // the last answer of /v1/refit
let timer;

export function startRefit() {
  byId("refit-button").addEventListener("click", refit);
  for (const event of ["session", "stored"]) news.addEventListener(event, look);
}

async function refit() {
  if (shown?.state === "running") return say("A refit is running already.");
  try {
    follow(await post("refit", {}));
  } catch (error) {
    fail(error);
    look();
  }
}

/** Show how the refit is; users who cannot write see nothing of it. */
async function look() {
  clearTimeout(timer);
  if (whyReadOnly()) return paint(null);
  try {
    follow(await get("refit"));
  } catch (error) {
    if (error.status === 409) return paint(null); // a model that cannot be refitted
    if (shown?.state === "running") timer = setTimeout(look, PAUSE);
  }
}

/** Show an answer, look again while the refit runs, and ask again about the text when there is another model. */
function follow(status) {
  const ended = shown?.state === "running" && status.state !== "running";
  paint(status);
  clearTimeout(timer);
  if (status.state === "running") timer = setTimeout(look, PAUSE);
  if (!ended) return;
  if (status.state === "failed") fail(new Error(status.sentence));
  if (status.state === "done") say("The model is refitted.");
  if (status.state === "done" && asked) ask(asked.text);
}

function paint(status) {
  shown = status;
  byId("refit").hidden = status === null;
  if (status === null) return;
  const running = status.state === "running";
  const changed = status.changed_documents; // null while the datastore is away
  byId("refit-changes").textContent =
    changed === null ? "" : `${counted(changed, "document")} changed since the model last learnt.`.replace(/^no/, "No");
  byId("refit-button").setAttribute("aria-disabled", String(running)); // still in reach, so that the focus stays
  byId("refit-said").textContent = running ? `Refitting: ${status.stage} …` : status.sentence ?? "";
  const bar = byId("refit-progress");
  bar.hidden = !running;
  if (status.total && status.done !== null) bar.value = Math.min(1, status.done / status.total);
  else bar.removeAttribute("value");
}
