/** Names of labels in the model's vocabulary, collected from responses; the datastore contains the ids. */

const names = new Map(); // label → name
const labels = new Map(); // name → its labels

/** Remember the names in a response, and in the predictions of a batch. */
export function learnNames(answer) {
  for (const prediction of answer?.predictions ?? []) learnNames(prediction);
  for (const [label, name] of Object.entries(answer?.names ?? {})) {
    if (names.get(label) !== name) labels.get(names.get(label))?.delete(label); // it was renamed
    names.set(label, name);
    labels.set(name, (labels.get(name) ?? new Set()).add(label));
  }
}

/** Return the name of a label, or the label itself if it has none. */
export const nameOf = (label) => names.get(label) ?? label;

/** Return the label for a typed name or id; a name of several labels is taken as an id. */
export function labelOf(typed) {
  const found = labels.get(typed);
  return !names.has(typed) && found?.size === 1 ? [...found][0] : typed;
}

/** Return the text for a field that `labelOf` converts back to the label. */
export const typedFor = (label) => (labelOf(nameOf(label)) === label ? nameOf(label) : label);
