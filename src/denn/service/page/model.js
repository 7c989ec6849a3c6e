/** The Model view: what the model is, its refits, and how its recent predictions scored. */
import { get } from "./api.js";
import { bars, dots, figure } from "./charts.js";
import { byId } from "./dom.js";
import { count, counted, percent, score, when } from "./format.js";
import { factRows, modelCard } from "./model-card.js";
import { fail } from "./notice.js";
import { news } from "./session.js";

const MANY = 9; // labels; larger numbers share one bar

export function startModel() {
  news.addEventListener("refitted", () => byId("view-model").hidden || showModel());
}

/** Open the view. */
export async function showModel() {
  try {
    const [recent, model] = await Promise.all([get("recent"), get("model")]);
    byId("model-facts").replaceChildren(...factRows(model));
    byId("recent-summary").textContent = summary(recent);
    byId("recent-charts").replaceChildren(...charts(recent.predictions));
    byId("model-card").replaceChildren(...modelCard(model));
  } catch (error) {
    fail(error);
  }
}

function summary({ total, empty, predictions }) {
  if (!total) return "No predictions since the service started.";
  const last = predictions.at(-1);
  return `${counted(total, "prediction")} since the service started, ${count(empty)} without a label `
    + `(${percent(empty / total)}). Last prediction: ${when(last.time)}.`;
}

function charts(predictions) {
  if (!predictions.length) return [];
  return [bestChart(predictions.map((row) => row.best)), labelChart(predictions)];
}

function bestChart(values) {
  const low = values.filter((value) => value < 0.5).length;
  const words = `Last ${counted(values.length, "text")}: the best label scores at least ${score(median(values))} in `
    + `half of them, and below 0.50 in ${count(low)} (${percent(low / values.length)}).`;
  return figure("Score of the best label", dots(values), words);
}

function labelChart(predictions) {
  const found = Array.from({ length: MANY + 1 }, () => 0);
  for (const { labels } of predictions) found[Math.min(labels, MANY)] += 1;
  const name = (number) => (number === MANY ? `${MANY}+` : String(number));
  const words = `Last ${counted(predictions.length, "text")}: ${count(found[0])} without a label (${
    percent(found[0] / predictions.length)}); half have at least ${median(predictions.map((row) => row.labels))}.`;
  const picture = bars(found.map((value, number) => ({ name: name(number), value, loud: number === 0 })));
  return figure("Labels per text", picture, words);
}

/** Return the largest value that at least half of the values reach. */
function median(values) {
  const sorted = [...values].sort((a, b) => b - a);
  return sorted[Math.ceil(sorted.length / 2) - 1];
}
