/** Format numbers, shares and times. */

export const count = (number) => number.toLocaleString("en");

/** "1 label", "3 labels", "no labels". */
export function counted(number, noun) {
  return `${number === 0 ? "no" : count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Format a score with two decimals; 1.00 and 0.00 only for exactly 1 and 0. */
export function score(value) {
  if (value < 1 && value >= 0.995) return ">0.99";
  if (value > 0 && value < 0.005) return "<0.01";
  return value.toFixed(2);
}

export const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

/** Format the difference of two scores with its sign. */
export function signed(difference) {
  return `${difference < 0 ? "−" : "+"}${Math.abs(difference).toFixed(2)}`;
}

/** Format a date and time in the user's time zone. */
export function when(iso) {
  const time = new Date(iso);
  if (Number.isNaN(time.valueOf())) return String(iso);
  return time.toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
}

/** Format a duration: "less than a second", "40 s", "3 min". */
export function duration(seconds) {
  if (seconds < 1) return "less than a second";
  return seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}

/** Return the start of a text on one line. */
export function excerpt(text, characters = 160) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > characters ? `${line.slice(0, characters + 1).replace(/\s+\S{0,20}$/, "")} …` : line;
}
