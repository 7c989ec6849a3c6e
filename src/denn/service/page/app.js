/** Start all views, and show the one in the address. */
import { showAudit, startAudit } from "./audit.js";
import { forgetBatch, startBatch } from "./batch.js";
import { showDocuments, startDocuments } from "./documents.js";
import { byId, decoded } from "./dom.js";
import { ignoreStrayFiles } from "./files.js";
import { showHistory, startHistory } from "./history.js";
import { setKey, takeKeyFromAddress } from "./key.js";
import { showLabels, startLabels } from "./labels.js";
import { showMap, startMap } from "./map.js";
import { showModel, startModel } from "./model.js";
import { clearFailure, fail } from "./notice.js";
import { keepQueue } from "./queue-store.js";
import { showQueue, startQueue } from "./queue.js";
import { startRefit } from "./refit.js";
import { startKeyForm, news, refreshSession, session } from "./session.js";
import { startShortcuts } from "./shortcuts.js";
import { startExamples } from "./start.js";
import { startTag } from "./tag.js";
import { startTeach } from "./teach.js";

/** Functions that open the views; each may return the element to focus. */
const VIEWS = {
  tag: () => null,
  queue: () => showQueue(),
  audit: () => showAudit(),
  labels: () => showLabels(),
  documents: (part, query) => showDocuments(part, query),
  map: () => showMap(),
  batch: () => null,
  history: (part, query) => showHistory(query),
  model: () => showModel(),
};

/** Parse the address: `#/view/part?query`. */
function place() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [view, part] = path.split(/\/(.*)/s);
  return {
    view: Object.hasOwn(VIEWS, view) ? view : "tag",
    part: part ? decoded(part) : null,
    query: new URLSearchParams(search ?? ""),
  };
}

/** Show the view in the address; the others keep their state. The focus moves only if the user navigated. */
async function go({ step = true } = {}) {
  if (location.hash === "#main") return byId("main").focus();
  const { view, part, query } = place();
  for (const name of Object.keys(VIEWS)) byId(`view-${name}`).hidden = name !== view;
  for (const link of byId("views").querySelectorAll("a")) {
    if (link.hash === `#/${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = byId(`view-${view}`).querySelector("h1");
  document.title = `${title.textContent} · denn`;
  if (step) clearFailure(); // after a change of rights, the error that revealed it stays
  if (step && view !== "tag") title.focus({ preventScroll: true });
  if (step) window.scrollTo(0, 0);
  if (!session.may_read) return;
  const target = await VIEWS[view](part, query);
  if (step && target) target.focus({ preventScroll: true });
}

function startKeys() {
  startKeyForm();
  for (const button of ["open-key", "teach-key"]) {
    byId(button).addEventListener("click", () => byId("key-dialog").showModal());
  }
  byId("key-forget").addEventListener("click", () => {
    setKey(null);
    // Texts that the key gave access to must not remain in the browser, which may keep fields when it reloads a page.
    keepQueue(null);
    forgetBatch();
    for (const form of document.forms) form.reset();
    location.reload();
  });
}

/** Show the new address, which may contain another key. */
async function addressChanged() {
  if (takeKeyFromAddress()) await refreshSession().catch(fail);
  await go();
}

async function start() {
  takeKeyFromAddress();
  for (const begin of [startTag, startExamples, startTeach, startRefit, startShortcuts, startLabels, startDocuments,
    startMap, startBatch, startQueue, startAudit, startHistory, startModel, startKeys, ignoreStrayFiles]) begin();
  window.addEventListener("hashchange", addressChanged);
  news.addEventListener("session", () => go({ step: false })); // the new key may allow more
  go({ step: false });
  try {
    await refreshSession();
    if (!session.may_read) byId("key-dialog").showModal();
  } catch (error) {
    fail(error);
  }
}

start();
