/** Tag many texts in several requests, and retry while the service is busy. */
import { ApiError, patiently, post, TOOK_TOO_LONG } from "./api.js";
import { count } from "./format.js";

const PART = 64; // maximum number of texts per request
const ROOM = 0.8; // share of the body limit to use, because texts grow when encoded as JSON

/** An error in one row. */
export class RowError extends Error {
  constructor(row, message) {
    super(message);
    this.row = row;
  }
}

/**
 * The answer for a row: all labels worth showing, highest score first; `chosen` by the model's thresholds.
 * @typedef {{scores: {label: string, score: number, chosen: boolean}[], familiarity: number|null, unfamiliar: boolean}} Answer
 */

/**
 * Tag the rows that have no result yet, in order.
 * @param {string[]} texts
 * @param {(Answer|null|undefined)[]} results filled in as responses arrive; rows with a result are skipped
 * @param {{limits: object, signal: AbortSignal, onProgress: () => void, onWait: (seconds: number) => void}} options
 */
export async function tagAll(texts, results, { limits, signal, onProgress, onWait }) {
  let most = Math.min(PART, limits.texts ?? PART);
  for (let row = 0; row < texts.length; ) {
    if (results[row] !== undefined) {
      row += 1;
    } else if (!texts[row].trim()) {
      results[row] = { scores: [], familiarity: null, unfamiliar: false }; // an empty text needs no request
      row += 1;
    } else {
      checkLength(texts[row], row, limits);
      const rows = nextPart(texts, results, row, limits, most);
      try {
        const predictions = await sendPart(rows.map((place) => texts[place]), { signal, onWait }).catch(blame(rows));
        predictions.forEach((prediction, place) => (results[rows[place]] = kept(prediction)));
        onProgress();
      } catch (error) {
        if (error.status !== TOOK_TOO_LONG || rows.length === 1) throw error;
        most = Math.ceil(rows.length / 2); // for all later parts, too
      }
    }
  }
  onProgress();
}

/** Return at most `most` of the next rows that fit into one request, at least one. */
function nextPart(texts, results, start, limits, most) {
  const room = ROOM * (limits.body_bytes ?? 1e6);
  const rows = [];
  let bytes = 0;
  for (let row = start; row < texts.length && rows.length < most; row += 1) {
    if (results[row] !== undefined || !texts[row].trim()) continue;
    if (texts[row].length > limits.characters) break; // it is reported when its turn comes
    bytes += size(texts[row]);
    if (rows.length && bytes > room) break;
    rows.push(row);
  }
  return rows;
}

function checkLength(text, row, { characters }) {
  if (text.length <= characters || [...text].length <= characters) return;
  throw new RowError(row, `the text has ${count([...text].length)} characters; the maximum is ${count(characters)}.`);
}

const size = (text) => new TextEncoder().encode(JSON.stringify(text)).length + 1;

async function sendPart(texts, waiting) {
  const send = () => post("predict/batch", { texts, evidence: 0 }, waiting.signal);
  return (await patiently(send, waiting)).predictions;
}

/** Add the row to an error: the one that the service names, or the first of the request. */
function blame(rows) {
  return (error) => {
    if (error.name === "AbortError") throw error;
    for (const { where, message } of error.errors ?? []) {
      const place = /^body\.texts\.(\d+)/.exec(where)?.[1];
      if (place !== undefined) throw new RowError(rows[Number(place)], message);
    }
    if (error instanceof ApiError && rows.length === 1) throw new RowError(rows[0], error.message);
    error.firstRow = rows[0];
    throw error;
  };
}

/** Keep what the table, another threshold and the download need. */
function kept({ scores, familiarity, unfamiliar }) {
  return { scores: scores.map(({ label, score, chosen }) => ({ label, score, chosen })), familiarity, unfamiliar };
}
