/** The model card: the response of /v1/model as lists of names and values. */
import { el } from "./dom.js";
import { count, when } from "./format.js";

/** Return the sections of the model card, without empty ones. */
export function modelCard(model) {
  const { name, method, encoder, labels, created } = model;
  const parts = {
    Facts: { name, method, encoder, labels, created: when(created) },
    "Metrics on held-out documents": model.metrics,
    "Last refit": model.refitted,
    Thresholds: model.thresholds,
    Datastore: model.store,
    Corpus: model.corpus,
    Training: model.training,
    Parameters: model.parameters,
    Versions: model.versions,
  };
  return Object.entries(parts).map(([title, content]) => part(title, content)).filter(Boolean);
}

/** Return the facts that matter in daily work. */
export function factRows({ name, encoder, labels, created, refitted, metrics, thresholds, decides, store }) {
  const facts = {
    Name: name,
    Encoder: encoder,
    Labels: labels,
    "Stored documents": store?.documents,
    Trained: when(created),
    "Last refit": refitted && when(refitted.time),
    "micro-F1 on held-out documents": metrics.micro_f1,
    "macro-F1 on held-out documents": metrics.macro_f1,
    Threshold: decides === "tuned" ? thresholds.final : "one for each label",
  };
  return flat(facts).map(row);
}

const row = ([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value));

function part(title, content) {
  const rows = flat(content ?? {});
  if (!rows.length) return null;
  return el("section", { class: "card" }, el("h3", {}, title), el("dl", { class: "facts" }, rows.map(row)));
}

const LONGEST = 10; // longer lists are omitted

/** Flatten nested objects into names and values; omit long lists and lists of objects. */
function flat(content, before = "") {
  return Object.entries(content).flatMap(([key, value]) => {
    const name = before + key.replace("_f1", "-F1").replaceAll("_", " ");
    if (value === null || value === undefined || value === "") return [];
    if (Array.isArray(value)) return isShort(value) ? [[name, value.map(shown).join(", ")]] : [];
    if (typeof value === "object") return flat(value, `${name} · `);
    return [[name, shown(value)]];
  });
}

const isShort = (list) => list.length <= LONGEST && list.every((value) => typeof value !== "object");

function shown(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(4)));
}
