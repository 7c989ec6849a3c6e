/** The names of labels in the model's vocabulary, as answers of the service bring them; ids stay what is stored. */

const names = new Map(); // label → name
const labels = new Map(); // name → labels that have it

/** Remember the names in an answer, and in the predictions of a batch. */
export function learnNames(answer) {
  for (const prediction of answer?.predictions ?? []) learnNames(prediction);
  for (const [label, name] of Object.entries(answer?.names ?? {})) {
    names.set(label, name);
    labels.set(name, (labels.get(name) ?? new Set()).add(label));
  }
}

/** What a label is called; one without a name is called as it is. */
export const nameOf = (label) => names.get(label) ?? label;

/** The label that somebody typed, by its name or as it is; a name that several labels have means none of them. */
export function labelOf(typed) {
  const found = labels.get(typed);
  return !names.has(typed) && found?.size === 1 ? [...found][0] : typed;
}

/** What to put into a field for a label, so that `labelOf` gives it back. */
export const typedFor = (label) => (labelOf(nameOf(label)) === label ? nameOf(label) : label);
