/** Points on a canvas: drawing, finding the one under the pointer, moving with the arrow keys. */

const MARGIN = 26;
const REACH = 14; // pixels around a point that still mean it
const SIZE = 3.6;
const MOST_ZOOM = 20;

/** Shapes that go with the colours, so that no mark is told by its colour alone; all around (0,0), of radius 1. */
const SHAPES = {
  circle: [],
  square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  triangle: [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  diamond: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
  wedge: [[0, 1.2], [1.1, -0.8], [-1.1, -0.8]],
};

/** The mark of each place in the legend: colours come from the style sheet, `other` is the last. */
export const MARKS = [
  "circle", "square", "triangle", "diamond", "wedge", "circle", "square", "triangle", "diamond", "wedge",
].map((shape, place) => ({ shape, colour: `--m${place}` }));
export const OTHER = { shape: "circle", colour: "--m-other" };

/** Draw a mark with its middle at x, y. */
export function drawMark(pen, { shape }, x, y, radius) {
  pen.beginPath();
  if (shape === "circle") pen.arc(x, y, radius, 0, 7);
  else SHAPES[shape].forEach(([dx, dy], corner) => pen[corner ? "lineTo" : "moveTo"](x + radius * dx, y + radius * dy));
  pen.closePath();
  pen.fill();
}

export class Plot {
  #canvas;
  #points = []; // { x, y, mark, faded, … } in the units of the map
  #here = null; // where the current text is
  #active = null; // the point under the pointer or the keys
  #scale = { factor: 1, x: 0, y: 0 }; // so that everything fits
  #lens = { zoom: 1, x: 0, y: 0 }; // what the person has zoomed and moved

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Take points and, where there is one, the place of the current text. */
  set({ points, here }) {
    this.#points = points;
    this.#here = here;
    this.draw();
  }

  get active() {
    return this.#active;
  }

  set active(point) {
    if (point === this.#active) return;
    this.#active = point;
    this.draw();
  }

  /** Where a point is on the canvas, in CSS pixels. */
  at({ x, y }) {
    const { factor, x: left, y: top } = this.#scale;
    const { zoom, x: right, y: down } = this.#lens;
    return [zoom * (left + factor * x) + right, zoom * (top - factor * y) + down];
  }

  get zoomed() {
    return this.#lens.zoom > 1;
  }

  /** Zoom so that what is at this place of the canvas stays there; without one, the active point or the middle. */
  zoom(times, place) {
    const { clientWidth, clientHeight } = this.#canvas;
    const [x, y] = place ?? (this.#active ? this.at(this.#active) : [clientWidth / 2, clientHeight / 2]);
    const zoom = Math.min(MOST_ZOOM, Math.max(1, this.#lens.zoom * times));
    const change = zoom / this.#lens.zoom;
    this.#look({ zoom, x: x - change * (x - this.#lens.x), y: y - change * (y - this.#lens.y) });
  }

  move(dx, dy) {
    const { zoom, x, y } = this.#lens;
    this.#look({ zoom, x: x + dx, y: y + dy });
  }

  /** Move so far that a point is seen. */
  reveal(point) {
    const [x, y] = this.at(point);
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const beyond = (value, most) => Math.min(0, most - MARGIN - value) + Math.max(0, MARGIN - value);
    this.move(beyond(x, width), beyond(y, height));
  }

  /** Keep the map over the whole canvas. */
  #look({ zoom, x, y }) {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const within = (value, size) => Math.min(0, Math.max(size * (1 - zoom), value));
    this.#lens = { zoom, x: within(x, width), y: within(y, height) };
    this.draw();
  }

  /** The point nearest to a place on the canvas, null where none is near. */
  nearest(x, y) {
    let [best, least] = [null, REACH ** 2];
    for (const point of this.#points) {
      const [px, py] = this.at(point);
      const distance = (px - x) ** 2 + (py - y) ** 2 - (point.faded ? 0 : 4); // the marked ones lie above
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  }

  /** The next point in a direction; sideways steps count double. */
  neighbour(dx, dy) {
    const start = this.#active ?? this.#here;
    if (!start) return this.#points[0] ?? null;
    let [best, least] = [this.#active, Infinity];
    for (const point of this.#points) {
      const along = (point.x - start.x) * dx - (point.y - start.y) * dy;
      const aside = Math.abs((point.x - start.x) * dy) + Math.abs((point.y - start.y) * dx);
      if (point !== this.#active && along > 0 && along + 2 * aside < least) [best, least] = [point, along + 2 * aside];
    }
    return best;
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    if (!width || !height) return; // the view is hidden
    const ratio = devicePixelRatio || 1;
    this.#canvas.width = width * ratio;
    this.#canvas.height = height * ratio;
    this.#fit(width, height);
    const pen = this.#canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(this.#canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    for (const faded of [true, false]) this.#drawPoints(pen, colour, faded);
    if (this.#active) this.#ring(pen, this.#active, 8, colour("--ink"));
    if (this.#here) this.#cross(pen, colour);
  }

  #drawPoints(pen, colour, faded) {
    pen.globalAlpha = faded ? 0.4 : 0.85;
    for (const point of this.#points) {
      if (point.faded !== faded) continue;
      pen.fillStyle = colour(point.mark.colour);
      drawMark(pen, point.mark, ...this.at(point), faded ? SIZE - 1.2 : SIZE);
    }
    pen.globalAlpha = 1;
  }

  #ring(pen, point, radius, colour) {
    pen.beginPath();
    pen.arc(...this.at(point), radius, 0, 7);
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.stroke();
  }

  /** The current text: a cross in a ring, with its name. */
  #cross(pen, colour) {
    const [x, y] = this.at(this.#here);
    this.#ring(pen, this.#here, 11, colour("--card"));
    this.#ring(pen, this.#here, 9, colour("--here"));
    pen.beginPath();
    for (const [dx, dy] of [[1, 0], [0, 1]]) {
      pen.moveTo(x - 14 * dx, y - 14 * dy);
      pen.lineTo(x + 14 * dx, y + 14 * dy);
    }
    pen.stroke();
    pen.font = "600 13px system-ui, sans-serif";
    pen.textAlign = x > this.#canvas.clientWidth - 90 ? "right" : "left";
    const words = [pen.textAlign === "left" ? x + 16 : x - 16, y - 8];
    pen.lineWidth = 4;
    pen.strokeStyle = colour("--card");
    pen.strokeText("your text", ...words);
    pen.fillStyle = colour("--here");
    pen.fillText("your text", ...words);
  }

  /** One scale for both axes, so that distances mean the same in every direction. */
  #fit(width, height) {
    const all = this.#here ? [...this.#points, this.#here] : this.#points;
    if (!all.length) return;
    const ends = (values) => [Math.min(...values), Math.max(...values)];
    const [left, right] = ends(all.map((point) => point.x));
    const [bottom, top] = ends(all.map((point) => point.y));
    const factor = Math.min((width - 2 * MARGIN) / (right - left || 1), (height - 2 * MARGIN) / (top - bottom || 1));
    this.#scale = {
      factor,
      x: width / 2 - (factor * (left + right)) / 2,
      y: height / 2 + (factor * (bottom + top)) / 2,
    };
  }
}
