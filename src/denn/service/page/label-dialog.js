/** The dialog that renames a label or merges it into another one. */
import { post, SOURCE } from "./api.js";
import { suggestLabels } from "./complete.js";
import { confirmed, undo } from "./confirm.js";
import { byId } from "./dom.js";
import { counted } from "./format.js";
import { labelOf, nameOf } from "./names.js";
import { fail, say } from "./notice.js";
import { relabelled, stored } from "./session.js";

let shown = null; // { label, documents }

export function startLabelDialog() {
  byId("label-rename").addEventListener("submit", (event) => submit(event, rename));
  byId("label-merge").addEventListener("submit", (event) => submit(event, merge));
  suggestLabels(byId("label-into"), byId("label-into-options"), () => {});
}

/** Open the dialog for a label. */
export function editLabel({ label, documents }) {
  shown = { label, documents };
  byId("label-title").textContent = nameOf(label);
  byId("label-documents").textContent = `${counted(documents, "document")}${nameOf(label) === label ? "" : `, id ${label}`}.`;
  byId("label-name").value = nameOf(label);
  byId("label-into").value = "";
  byId("label-failure").textContent = "";
  byId("label-dialog").showModal();
  byId("label-name").select();
}

async function submit(event, work) {
  event.preventDefault();
  byId("label-failure").textContent = "";
  try {
    await work();
  } catch (error) {
    byId("label-failure").textContent = error.message; // a message of the page would be behind the dialog
  }
}

async function rename() {
  const { label } = shown;
  const { before } = await sendName(label, byId("label-name").value.trim());
  if (shown.label === label) byId("label-dialog").close();
  const back = async () => {
    try {
      await sendName(label, before);
      say(`Renamed back to ${before}.`);
    } catch (error) {
      fail(error);
    }
  };
  say(`Renamed ${before} to ${nameOf(label)}.`, { label: "Undo", run: back });
}

async function sendName(label, name) {
  const answer = await post("labels/rename", { label, name });
  stored();
  return answer;
}

async function merge() {
  const { label, documents } = shown;
  const into = labelOf(byId("label-into").value.trim());
  const undoable = documents ? " You can undo this." : "";
  const question = `${counted(documents, "document")} will get ${nameOf(into)} instead of ${nameOf(label)}.${undoable}`;
  if (!(await confirmed(`Merge ${nameOf(label)} into ${nameOf(into)}?`, question.replace(/^no/, "No"), "Merge"))) return;
  const { documents: changed, change } = await post("labels/merge", { labels: [label], into, source: SOURCE });
  if (shown.label === label) byId("label-dialog").close();
  relabelled();
  const back = async () => {
    try {
      if (!(await undo(change))) return;
      relabelled();
      say(`Undone: ${nameOf(label)} has its documents again.`);
    } catch (error) {
      fail(error);
    }
  };
  const done = `Merged ${nameOf(label)} into ${nameOf(into)}: ${counted(changed, "document")} changed. A refit completes it.`;
  say(done, change === null ? undefined : { label: "Undo", run: back });
}
