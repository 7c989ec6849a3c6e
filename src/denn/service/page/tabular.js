/** Read CSV and JSON lines into rows, and write them back with the results. */
import { parseCsv, restore, writeCsv } from "./csv.js";

/**
 * A file of texts.
 * @typedef {object} Texts
 * @property {number} size number of rows
 * @property {string} about description of the format
 * @property {string[]} columns column names to choose from
 * @property {boolean} hasHeader whether the first row may contain column names
 * @property {string} guess the column that most likely contains the text
 * @property {(column: string) => string[]} texts one for each row
 * @property {() => string[][]} preview the first rows
 * @property {(row: number) => string} place position of a row, for messages
 * @property {(results: (Result|null)[]) => string} write
 *
 * The result for a row.
 * @typedef {{labels: string[], scores: number[], familiarity: number|null, unfamiliar: boolean}} Result
 */

const PREVIEW = 3;
const ADDED = ["labels", "scores", "familiarity", "unfamiliar"]; // fields added to each row

/** Read a file: .jsonl and .ndjson as JSON lines, all others as CSV. */
export function readTexts(name, content, { header = true } = {}) {
  const texts = /\.(jsonl|ndjson)$/i.test(name) ? jsonLines(content) : table(content, header);
  if (!texts.size) throw new Error("the file has no rows.");
  return texts;
}

function table(content, header) {
  const { rows: read, ...format } = parseCsv(content);
  const all = header && isOurs(read[0]) ? read.map((row) => row.map(restore)) : read;
  const rows = header ? all.slice(1) : all;
  const width = all[0]?.length ?? 0;
  const wide = all.findIndex((row) => row.length > width);
  if (wide >= 0) throw new Error(`row ${wide + 1} has ${all[wide].length} fields, but the first row has ${width}.`);
  const columns = Array.from({ length: width }, (_, place) => (header && all[0][place]) || `column ${place + 1}`);
  const padded = (row) => [...row, ...Array(width - row.length).fill("")];
  return {
    about: `separated by ${{ "\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars" }[format.separator]}`,
    size: rows.length,
    columns: unique(columns),
    hasHeader: true,
    guess: guessColumn(unique(columns), rows),
    texts: (column) => rows.map((row) => row[unique(columns).indexOf(column)] ?? ""),
    preview: () => rows.slice(0, PREVIEW).map(padded),
    place: (row) => `row ${row + 1}`,
    write(results) {
      const labels = joiner(results);
      const cells = (found) => (found ? resultCells(found, labels) : ADDED.map(() => ""));
      const first = header ? [[...padded(all[0]), ...newNames(columns)]] : [];
      return writeCsv([...first, ...rows.map((row, place) => [...padded(row), ...cells(results[place])])], format);
    },
  };
}

function resultCells({ labels, scores, familiarity, unfamiliar }, joined) {
  const near = familiarity === null ? "" : rounded(familiarity);
  return [joined(labels), scores.map(rounded).join("|"), near, unfamiliar ? "true" : ""];
}

/** Return whether this page wrote a file, judging by its last columns; only then are apostrophes removed. */
function isOurs(header = []) {
  const names = header.map((name) => name.replace(/^predicted_/, ""));
  return [ADDED, ADDED.slice(0, 2)].some((added) => names.slice(-added.length).join() === added.join());
}

function jsonLines(content) {
  const newline = content.includes("\r\n") ? "\r\n" : "\n";
  const lines = content.replace(/^\uFEFF/, "").split("\n");
  const rows = lines
    .map((text, place) => ({ text: text.trim(), number: place + 1 }))
    .filter(({ text }) => text)
    .map((line) => ({ ...line, value: jsonObject(line) }));
  const names = [...new Set(rows.flatMap(({ value }) => Object.keys(value)))];
  const columns = names.filter((name) => rows.some(({ value }) => typeof value[name] === "string"));
  if (rows.length && !columns.length) throw new Error("no line has a string field for the text.");
  return {
    about: "one JSON object per line",
    size: rows.length,
    columns,
    hasHeader: false,
    guess: guessColumn(columns, rows.map(({ value }) => columns.map((key) => value[key]))),
    texts: (column) => rows.map(({ value }) => (typeof value[column] === "string" ? value[column] : "")),
    preview: () => rows.slice(0, PREVIEW).map(({ value }) => columns.map((key) => String(value[key] ?? ""))),
    place: (row) => `line ${rows[row].number}`,
    write(results) {
      return rows.map(({ text }, place) => extended(text, newNames(names), results[place]) + newline).join("");
    },
  };
}

function jsonObject({ text, number }) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(`Line ${number} is not valid JSON. Expected an object such as {"text": "…"}.`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error(`Line ${number} is not a JSON object. Expected one such as {"text": "…"}.`);
  }
  return value;
}

/** Add fields at the end of an object's JSON text, which leaves the rest unchanged, including long numbers. */
function extended(text, [labelsName, scoresName, familiarityName, unfamiliarName], found) {
  if (!found) return text;
  const scores = Object.fromEntries(found.labels.map((label, place) => [label, Number(rounded(found.scores[place]))]));
  const near = found.familiarity === null ? null : Number(rounded(found.familiarity));
  const fields = JSON.stringify({
    [labelsName]: found.labels,
    [scoresName]: scores,
    [familiarityName]: near,
    ...(found.unfamiliar && { [unfamiliarName]: true }),
  }).slice(1);
  const start = text.slice(0, -1).trimEnd();
  return `${start}${start === "{" ? "" : ", "}${fields}`;
}

/** Return the names of the added fields, with a prefix if the file already has them. */
function newNames(taken) {
  return ADDED.map((name) => (taken.includes(name) ? `predicted_${name}` : name));
}

/** Return a function that joins labels with bars, as `denn` reads them, or as JSON if a label contains a separator. */
function joiner(results) {
  const risky = results.some((found) => found?.labels.some((label) => /[|;,]/.test(label)));
  return (labels) => (risky ? JSON.stringify(labels) : labels.join("|"));
}

const rounded = (score) => score.toFixed(4);

/** Return the column with a typical name, or else the one with the longest content. */
function guessColumn(columns, rows) {
  const named = columns.find((name) => /^(text|body|content|description)$/i.test(name));
  if (named !== undefined) return named;
  const length = (place) => rows.slice(0, 50).reduce((sum, row) => sum + (row[place]?.length ?? 0), 0);
  const lengths = columns.map((_, place) => length(place));
  return columns[lengths.indexOf(Math.max(...lengths))];
}

/** Make duplicate names unique by adding their position. */
function unique(names) {
  return names.map((name, place) => (names.indexOf(name) === place ? name : `${name} (${place + 1})`));
}
