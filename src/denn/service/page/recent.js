/** The view Recent: how confident and how empty the last predictions were, and the model behind them. */
import { get } from "./api.js";
import { bars, dots, figure } from "./charts.js";
import { byId } from "./dom.js";
import { count, counted, percent, score, when } from "./format.js";
import { modelCard } from "./model-card.js";
import { fail } from "./notice.js";

const MANY = 9; // labels; more are counted together

export function startRecent() {
  byId("recent-refresh").addEventListener("click", showRecent);
}

/** Called when the view is opened. */
export async function showRecent() {
  try {
    const [recent, model] = await Promise.all([get("recent"), get("model")]);
    byId("recent-summary").textContent = summary(recent);
    byId("recent-charts").replaceChildren(...charts(recent.predictions));
    byId("model-card").replaceChildren(...modelCard(model));
  } catch (error) {
    fail(error);
  }
}

function summary({ total, empty, predictions }) {
  if (!total) return "Nothing was predicted since the service started.";
  const last = predictions.at(-1);
  return `${counted(total, "prediction")} since the service started, ${count(empty)} of them without a label `
    + `(${percent(empty / total)}). The last one was on ${when(last.time)}.`;
}

function charts(predictions) {
  if (!predictions.length) return [];
  const confidences = predictions.map((row) => row.confidence).filter((value) => value !== null);
  return [confidences.length && confidenceChart(confidences), labelChart(predictions)].filter(Boolean);
}

function confidenceChart(values) {
  const low = values.filter((value) => value < 0.4).length;
  const words = `Of the last ${count(values.length)}, half have a confidence of ${score(median(values))} or more; `
    + `${count(low)} (${percent(low / values.length)}) are below 0.40, where the classifier decides nearly alone.`;
  return figure("Confidence: how much the neighbours counted", dots(values), words);
}

function labelChart(predictions) {
  const found = Array.from({ length: MANY + 1 }, () => 0);
  for (const { labels } of predictions) found[Math.min(labels, MANY)] += 1;
  const name = (number) => (number === MANY ? `${MANY}+` : String(number));
  const words = `Of the last ${count(predictions.length)}, ${count(found[0])} have no label `
    + `(${percent(found[0] / predictions.length)}); half have ${median(predictions.map((row) => row.labels))} or more.`;
  const picture = bars(found.map((value, number) => ({ name: name(number), value, loud: number === 0 })));
  return figure("Labels per text", picture, words);
}

/** The largest value that at least half reach. */
function median(values) {
  const sorted = [...values].sort((a, b) => b - a);
  return sorted[Math.ceil(sorted.length / 2) - 1];
}
