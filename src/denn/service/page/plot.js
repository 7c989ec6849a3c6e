/** A scatter plot on a canvas: draw points, find the one under the pointer, move with the arrow keys. */

const MARGIN = 26;
const REACH = 14; // radius in pixels in which a point can be selected
const SIZE = 3.6;
const MOST_ZOOM = 20;

/** Shapes around (0,0) with radius 1, so that marks do not differ by colour alone. */
const SHAPES = {
  circle: [],
  square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  triangle: [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  diamond: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
  wedge: [[0, 1.2], [1.1, -0.8], [-1.1, -0.8]],
};

/** The marks of the legend, in order; the style sheet sets the colours. */
export const MARKS = [
  "circle", "square", "triangle", "diamond", "wedge", "circle", "square", "triangle", "diamond", "wedge",
].map((shape, place) => ({ shape, colour: `--m${place}` }));
export const OTHER = { shape: "circle", colour: "--m-other" };

/** Draw a mark centred at x, y. */
function drawMark(pen, { shape }, x, y, radius) {
  pen.beginPath();
  if (shape === "circle") pen.arc(x, y, radius, 0, 7);
  else SHAPES[shape].forEach(([dx, dy], corner) => pen[corner ? "lineTo" : "moveTo"](x + radius * dx, y + radius * dy));
  pen.closePath();
  pen.fill();
}

export class Plot {
  #canvas;
  #points = []; // { x, y, mark, faded, … } in map coordinates
  #here = null; // position of the current text
  #active = null; // the point selected by pointer or keyboard
  #scale = { factor: 1, x: 0, y: 0 }; // fits all points into the canvas
  #lens = { zoom: 1, x: 0, y: 0 }; // the user's zoom and pan

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Set the points and the position of the current text, if any. */
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

  /** Return the position of a point on the canvas in CSS pixels. */
  at({ x, y }) {
    const { factor, x: left, y: top } = this.#scale;
    const { zoom, x: right, y: down } = this.#lens;
    return [zoom * (left + factor * x) + right, zoom * (top - factor * y) + down];
  }

  get zoomed() {
    return this.#lens.zoom > 1;
  }

  /** Zoom around a position; default: the active point, or the centre. */
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

  /** Pan just far enough to show a point. */
  reveal(point) {
    const [x, y] = this.at(point);
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const beyond = (value, most) => Math.min(0, most - MARGIN - value) + Math.max(0, MARGIN - value);
    this.move(beyond(x, width), beyond(y, height));
  }

  /** Set zoom and pan, keeping the canvas filled. */
  #look({ zoom, x, y }) {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const within = (value, size) => Math.min(0, Math.max(size * (1 - zoom), value));
    this.#lens = { zoom, x: within(x, width), y: within(y, height) };
    this.draw();
  }

  /** Return the point nearest to a position, or null if none is near. */
  nearest(x, y) {
    let [best, least] = [null, REACH ** 2];
    for (const point of this.#points) {
      const [px, py] = this.at(point);
      const distance = (px - x) ** 2 + (py - y) ** 2 - (point.faded ? 0 : 4); // prefer marked points
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  }

  /** Return the next point in a direction; sideways distance counts double. */
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

  /** Draw the current text as a cross in a ring, with a caption. */
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

  /** Fit the points into the canvas, with one scale for both axes to keep distances comparable. */
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
