/** The view Recent: how well the best labels of the last predictions scored, how many got none, and the model behind them. */
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
  return [bestChart(predictions.map((row) => row.best)), labelChart(predictions)];
}

function bestChart(values) {
  const low = values.filter((value) => value < 0.5).length;
  const words = `For half of the last ${count(values.length)}, the best label scores ${score(median(values))} or more; `
    + `for ${count(low)} (${percent(low / values.length)}) it scores below 0.50.`;
  return figure("Score of the best label", dots(values), words);
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
