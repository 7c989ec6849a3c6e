/** Read dropped or opened files, and save files. */

/** Ignore files dropped outside a drop zone, which would otherwise replace the page. */
export function ignoreStrayFiles() {
  for (const event of ["dragover", "drop"]) window.addEventListener(event, (dropped) => dropped.preventDefault());
}

/** Accept files dropped on an element or chosen in its input. */
export function acceptFiles(zone, input, take) {
  const over = (state) => (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    zone.classList.toggle("over", state);
  };
  zone.addEventListener("dragenter", over(true));
  zone.addEventListener("dragover", over(true));
  zone.addEventListener("dragleave", over(false));
  zone.addEventListener("drop", (event) => {
    over(false)(event);
    const [file] = event.dataTransfer.files;
    if (file) take(file);
  });
  input.addEventListener("change", () => {
    const [file] = input.files;
    if (file) take(file);
    input.value = ""; // allow choosing the same file again
  });
}

/**
 * Decode a file as UTF-8, UTF-16 with a byte-order mark, or else Windows-1252, which older spreadsheets write.
 * Keeps a byte-order mark as the first character.
 */
export async function decodeFile(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const marks = { "255,254": "utf-16le", "254,255": "utf-16be" };
  const encoding = marks[bytes.slice(0, 2).join()] ?? "utf-8";
  try {
    return new TextDecoder(encoding, { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

/** Return the text of a .txt, .md or .html file; for HTML, only the visible text. */
export async function readTextFile(file) {
  const content = (await decodeFile(file)).replace(/^\uFEFF/, "");
  return /\.html?$/i.test(file.name) ? textOfHtml(content) : content;
}

/** Return the text of an HTML page. Parsing is safe: no script runs and nothing is loaded. */
function textOfHtml(html) {
  const { body } = new DOMParser().parseFromString(html, "text/html");
  for (const element of body.querySelectorAll("script, style, noscript, template")) element.remove();
  for (const element of body.querySelectorAll("p, div, li, h1, h2, h3, h4, h5, h6, br, tr")) element.append("\n");
  return body.textContent.replace(/[ \t]+/g, " ").replace(/ *\n\s*\n\s*/g, "\n\n").trim();
}

/** Save a text as a file. */
export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
