/** The Map view: the datastore in two dimensions, with the current text. */
import { get, post } from "./api.js";
import { byId, el, route, svg, tableRow } from "./dom.js";
import { count, counted, percent } from "./format.js";
import { nameOf } from "./names.js";
import { fail } from "./notice.js";
import { MARKS, OTHER, Plot } from "./plot.js";
import { news } from "./session.js";
import { asked } from "./tag.js";

const STEPS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ZOOMS = { "+": 1.5, "-": 1 / 1.5, 0: 0 };
const DRAG = 5; // pixels; moving further is a drag, not a click
const canvas = byId("map-canvas");
let plot;
let map = null; // last response of /v1/map
let placed = { text: null, here: null };
let chosen = null; // the highlighted label

export function startMap() {
  plot = new Plot(canvas);
  news.addEventListener("stored", () => (map = null));
  news.addEventListener("session", () => (map = null));
  startPointer();
  canvas.addEventListener("blur", () => point(null));
  canvas.addEventListener("keydown", (event) => {
    if (STEPS[event.key]) point(plot.neighbour(...STEPS[event.key]), { reveal: true });
    else if (event.key === "Enter") openPoint(plot.active);
    else if (event.key === "Escape") point(null);
    else if (event.key in ZOOMS) zoom(ZOOMS[event.key]);
    else return;
    event.preventDefault();
  });
  byId("zoom-in").addEventListener("click", () => zoom(ZOOMS["+"]));
  byId("zoom-out").addEventListener("click", () => zoom(ZOOMS["-"]));
}

/** Handle hovering, dragging, clicking, and zooming with Ctrl and the wheel. */
function startPointer() {
  let dragged = null; // pixels moved since the button was pressed
  canvas.addEventListener("pointerdown", () => (dragged = 0));
  canvas.addEventListener("pointermove", ({ offsetX, offsetY, movementX, movementY, buttons }) => {
    if (!buttons || !plot.zoomed) return point(plot.nearest(offsetX, offsetY));
    dragged += Math.abs(movementX) + Math.abs(movementY);
    point(null);
    plot.move(movementX, movementY);
  });
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", ({ offsetX, offsetY }) => {
    if (dragged < DRAG) openPoint(plot.nearest(offsetX, offsetY));
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // scroll the page; a pinch on a touchpad sets ctrlKey
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 200), [event.offsetX, event.offsetY]);
  }, { passive: false });
}

function zoom(times, place) {
  plot.zoom(times, place);
  point(plot.active);
  byId("zoom-out").disabled = !plot.zoomed;
}

/** Open the view. */
export async function showMap() {
  try {
    if (!map) {
      map = await get("map", { limit: 2000 });
      placed = { text: null, here: null }; // the axes have changed
      chosen = null;
      showLegend();
    }
    const text = asked?.text ?? null;
    if (text !== placed.text) placed = { text, here: text === null ? null : await post("map/place", { text }) };
    paint();
    byId("map-summary").textContent = summary();
  } catch (error) {
    fail(error);
    byId("map-summary").textContent = "The map is unavailable.";
  }
}

function summary() {
  const { points, documents, share } = map;
  const part = points.length < documents ? `${count(points.length)} of ` : "";
  const text = placed.here ? "The cross is the last text you tagged." : "Tag a text to see it here.";
  return `${part}${counted(documents, "document")}. The axes explain ${percent(share)} of the variance. ${text}`;
}

function paint() {
  const points = map.points.map((document) => ({ ...document, ...look(document) }));
  plot.active = null;
  byId("map-tip").hidden = true;
  plot.set({ points, here: placed.here });
  const where = placed.here ? ", with your text" : "";
  canvas.setAttribute("aria-label", `${counted(points.length, "document")} in two dimensions${where}`);
}

/** Return the mark of a document: that of the selected label, or of its rarest label in the legend. */
function look({ labels }) {
  if (chosen !== null) {
    const has = labels.includes(chosen);
    return { mark: has ? MARKS[map.labels.indexOf(chosen)] : OTHER, faded: !has };
  }
  const place = map.labels.findLastIndex((label) => labels.includes(label));
  return { mark: place < 0 ? OTHER : MARKS[place], faded: place < 0 };
}

function showLegend() {
  const having = (wanted) => map.points.filter(({ labels }) => wanted(labels)).length;
  const rows = map.labels.map((label) => [label, having((labels) => labels.includes(label))]);
  const rest = having((labels) => !labels.some((label) => map.labels.includes(label)));
  byId("legend").replaceChildren(
    ...rows.map(([label, number], place) => el("li", {}, legendButton(label, number, MARKS[place], place))),
    el("li", { class: "legend-other" }, sample(OTHER, "other"), el("span", { class: "name" }, "other"),
      el("span", { class: "number" }, count(rest))));
  byId("map-table").tBodies[0].replaceChildren(
    ...rows.map(([label, number]) => tableRow(nameOf(label), number)), tableRow("other", rest));
}

function legendButton(label, number, mark, place) {
  const button = el("button", { type: "button", class: "legend-label", "aria-pressed": "false" },
    sample(mark, place), el("span", { class: "name" }, nameOf(label)), el("span", { class: "number" }, count(number)));
  button.addEventListener("click", () => {
    chosen = chosen === label ? null : label;
    for (const other of byId("legend").querySelectorAll("button")) {
      other.setAttribute("aria-pressed", String(other === button && chosen !== null));
    }
    paint();
  });
  return button;
}

const POLYGONS = {
  square: "3,3 13,3 13,13 3,13", triangle: "8,2 14,13 2,13", diamond: "8,1 15,8 8,15 1,8", wedge: "8,14 14,3 2,3",
};

function sample({ shape }, place) {
  const circle = shape === "circle";
  const drawn = circle ? svg("circle", { cx: 8, cy: 8, r: 5.5 }) : svg("polygon", { points: POLYGONS[shape] });
  return svg("svg", { viewBox: "0 0 16 16", class: `sample m${place}`, "aria-hidden": "true" }, drawn);
}

function point(found, { reveal = false } = {}) {
  const tip = byId("map-tip");
  plot.active = found;
  if (found && reveal) plot.reveal(found);
  canvas.classList.toggle("pointing", found !== null);
  tip.hidden = found === null;
  if (!found) return;
  tip.replaceChildren(el("strong", {}, found.id), el("span", {}, found.labels.map(nameOf).join(", ") || "no labels"));
  const [x, y] = plot.at(found);
  const left = Math.min(Math.max(0, x - tip.offsetWidth / 2), canvas.clientWidth - tip.offsetWidth);
  const above = y > tip.offsetHeight + 16;
  tip.style.transform = `translate(${left}px, ${above ? y - tip.offsetHeight - 14 : y + 14}px)`;
}

function openPoint(found) {
  if (found) location.hash = route("documents", {}, found.id);
}
