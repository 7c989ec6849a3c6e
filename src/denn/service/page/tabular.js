/** Files of many texts: CSV and JSON lines, read into rows and written back with what was found. */
import { parseCsv, restore, writeCsv } from "./csv.js";

/**
 * A file of texts.
 * @typedef {object} Texts
 * @property {number} size how many rows there are
 * @property {string} about what was found, in words
 * @property {string[]} columns names to choose the text from
 * @property {boolean} hasHeader whether the first row may name the columns
 * @property {string} guess the column that most likely holds the text
 * @property {(column: string) => string[]} texts one for each row
 * @property {() => string[][]} preview the first rows, in the order of the columns
 * @property {(row: number) => string} place where a row is, for messages
 * @property {(results: (Result|null)[]) => string} write
 *
 * What was found for a row.
 * @typedef {{labels: string[], scores: number[], familiarity: number|null, unfamiliar: boolean}} Result
 */

const PREVIEW = 3;
const ADDED = ["labels", "scores", "familiarity", "unfamiliar"]; // fields of each row

/** Read a file by its name: .jsonl and .ndjson are JSON lines, everything else is CSV. */
export function readTexts(name, content, { header = true } = {}) {
  const texts = /\.(jsonl|ndjson)$/i.test(name) ? jsonLines(content) : table(content, header);
  if (!texts.size) throw new Error("the file holds no rows.");
  return texts;
}

function table(content, header) {
  const { rows: read, ...format } = parseCsv(content);
  const all = header && isOurs(read[0]) ? read.map((row) => row.map(restore)) : read;
  const rows = header ? all.slice(1) : all;
  const width = all[0]?.length ?? 0;
  const wide = all.findIndex((row) => row.length > width);
  if (wide >= 0) throw new Error(`record ${wide + 1} has ${all[wide].length} fields, expected at most ${width}.`);
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

/** Tell a file that this page wrote, by its last columns; in other files an apostrophe means itself. */
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
  if (rows.length && !columns.length) throw new Error("no line has a string in it, expected a field with the text.");
  return {
    about: "one JSON object a line",
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
    throw new Error(`Line ${number} is not JSON, expected an object such as {"text": "…"}.`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error(`Line ${number} is not a JSON object, expected one such as {"text": "…"}.`);
  }
  return value;
}

/** Add fields at the end of an object's own text, so that all else stays as it was written, long numbers too. */
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

/** The names of the added fields, or other names where the file has those already. */
function newNames(taken) {
  return ADDED.map((name) => (taken.includes(name) ? `predicted_${name}` : name));
}

/** Labels joined by bars, as `denn` reads them; as JSON lists where a label itself has a sign that could part it. */
function joiner(results) {
  const risky = results.some((found) => found?.labels.some((label) => /[|;,]/.test(label)));
  return (labels) => (risky ? JSON.stringify(labels) : labels.join("|"));
}

const rounded = (score) => score.toFixed(4);

/** The column called text, or the one with the longest content. */
function guessColumn(columns, rows) {
  const named = columns.find((name) => /^(text|body|content|description)$/i.test(name));
  if (named !== undefined) return named;
  const length = (place) => rows.slice(0, 50).reduce((sum, row) => sum + (row[place]?.length ?? 0), 0);
  const lengths = columns.map((_, place) => length(place));
  return columns[lengths.indexOf(Math.max(...lengths))];
}

/** Names that occur twice get their place added. */
function unique(names) {
  return names.map((name, place) => (names.indexOf(name) === place ? name : `${name} (${place + 1})`));
}
