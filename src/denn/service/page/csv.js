/** CSV as in RFC 4180, also with other separators, a byte-order mark and any line endings. */

const SEPARATORS = [",", ";", "\t", "|"];
const SAMPLE = 20; // number of records used to detect the separator

/**
 * Parse a file.
 * @param {string} text
 * @param {string} [separator] detected by default
 * @returns {{rows: string[][], separator: string, newline: string, bom: boolean}}
 */
export function parseCsv(text, separator) {
  const bom = text.startsWith("\uFEFF");
  const body = bom ? text.slice(1) : text;
  const used = separator ?? findSeparator(body);
  const rows = [...records(body, used)];
  return { rows, separator: used, newline: /\r?\n|\r/.exec(unquoted(body))?.[0] ?? "\n", bom };
}

/** Write rows; `parseCsv` and `restore` return the same rows again. */
export function writeCsv(rows, { separator = ",", newline = "\n", bom = false } = {}) {
  const special = new RegExp(`["\\r\\n${separator === "\t" ? "\\t" : `\\${separator}`}]|^\\s|\\s$`);
  const quoted = (value) => (special.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const field = (value) => quoted(protect(value));
  // A row of one empty field must not become a blank line, which is skipped.
  const line = (row) => (row.length === 1 && row[0] === "" ? '""' : row.map(field).join(separator));
  return (bom ? "\uFEFF" : "") + rows.map((row) => line(row) + newline).join("");
}

/** Put an apostrophe before cells that a spreadsheet would run as a formula, as OWASP advises; keep numbers. */
function protect(cell) {
  return /^'*[=+\-@\t\r\n＝＋－＠]/.test(cell) && !/^[+-]?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(cell) ? `'${cell}` : cell;
}

/** Undo `protect`. */
export function restore(cell) {
  return /^'+[=+\-@\t\r\n＝＋－＠]/.test(cell) ? cell.slice(1) : cell;
}

/** Return the separator that splits the first records into the same, largest number of fields; default: a comma. */
function findSeparator(text) {
  let best = { separator: ",", fields: 1 };
  for (const separator of SEPARATORS) {
    const widths = firstWidths(text, separator);
    const same = widths.every((width) => width === widths[0]);
    if (same && widths[0] > best.fields) best = { separator, fields: widths[0] };
  }
  return best.separator;
}

function firstWidths(text, separator) {
  const widths = [];
  try {
    for (const row of records(text, separator)) {
      widths.push(row.length);
      if (widths.length === SAMPLE) break;
    }
  } catch {
    return [0]; // invalid with this separator
  }
  return widths;
}

/** Yield the records, skipping blank lines. */
function* records(text, separator) {
  let row = [];
  let at = 0;
  let line = 1;
  while (at < text.length) {
    const quoted = text[at] === '"';
    const field = quoted ? quotedField(text, at, line) : plainField(text, at, separator);
    row.push(field.value);
    at = field.end;
    if (quoted) line += newlines(text, field.start, at);
    if (text[at] === separator) {
      at += 1;
      if (at === text.length) row.push(""); // the file ends after a separator
    } else if (at < text.length && text[at] !== "\r" && text[at] !== "\n") {
      throw new Error(`Line ${line} has “${text[at]}” after a closing quote. Put a separator there.`);
    } else {
      at += text[at] === "\r" && text[at + 1] === "\n" ? 2 : 1;
      line += 1;
      if (row.length > 1 || row[0] !== "" || quoted) yield row;
      row = [];
    }
  }
  if (row.length) yield row;
}

function plainField(text, start, separator) {
  let end = start;
  while (end < text.length && text[end] !== separator && text[end] !== "\n" && text[end] !== "\r") end += 1;
  return { value: text.slice(start, end), start, end };
}

function quotedField(text, start, line) {
  let value = "";
  let at = start + 1;
  for (;;) {
    const quote = text.indexOf('"', at);
    if (quote < 0) throw new Error(`The quote opened in line ${line} is never closed.`);
    value += text.slice(at, quote);
    if (text[quote + 1] !== '"') return { value, start, end: quote + 1 };
    value += '"';
    at = quote + 2;
  }
}

function newlines(text, start, end) {
  return text.slice(start, end).match(/\r\n|\r|\n/g)?.length ?? 0;
}

/** Return the start of a text without its quoted fields, to detect the line endings. */
function unquoted(text) {
  return text.slice(0, 100_000).replace(/"(?:[^"]|"")*"/g, "");
}
