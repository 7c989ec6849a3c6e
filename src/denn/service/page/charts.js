/** Two small charts, each with a summary in words. */
import { el, svg } from "./dom.js";

const WIDTH = 360;
const HEIGHT = 150;
const LEFT = 34;
const BOTTOM = 24;
const TOP = 8;

/** Return a figure with a caption, a picture and a summary, which is also the accessible name of the picture. */
export function figure(title, picture, words) {
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", words);
  return el("figure", { class: "card chart-card" }, el("figcaption", { class: "heading" }, title), picture,
    el("p", { class: "note" }, words));
}

/** Draw values from 0 to 1 as dots, in order. */
export function dots(values) {
  const x = (place) => LEFT + ((place + 0.5) / values.length) * (WIDTH - LEFT - 6);
  const y = (value) => TOP + (1 - value) * (HEIGHT - TOP - BOTTOM);
  const marks = values.map((value, place) => svg("circle", { cx: x(place), cy: y(value), r: 2.6, class: "dot" }));
  const lines = [0, 0.5, 1].map((value) => gridLine(y(value), String(value)));
  return chart(lines, marks, [axisWord("earlier", LEFT, "start"), axisWord("now", WIDTH - 6, "end")]);
}

/**
 * Draw bars.
 * @param {{name: string, value: number, loud?: boolean}[]} bars
 */
export function bars(bars) {
  const most = Math.max(1, ...bars.map((bar) => bar.value));
  const step = (WIDTH - LEFT - 6) / bars.length;
  const y = (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
  const marks = bars.map(({ value, loud }, place) => svg("rect", {
    x: LEFT + place * step + 2, width: Math.max(1, step - 4), y: y(value), height: HEIGHT - BOTTOM - y(value), rx: 2,
    class: loud ? "bar-loud" : "bar-plain",
  }));
  const names = bars.map(({ name }, place) => axisWord(name, LEFT + (place + 0.5) * step, "middle"));
  return chart([0, most].map((value) => gridLine(y(value), String(value))), marks, names);
}

const chart = (...parts) => svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart" }, ...parts.flat());

function gridLine(y, name) {
  return svg("g", {},
    svg("line", { x1: LEFT, x2: WIDTH - 6, y1: y, y2: y, class: "grid" }),
    svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, name));
}

const axisWord = (word, x, anchor) => svg("text", { x, y: HEIGHT - 6, "text-anchor": anchor }, word);
