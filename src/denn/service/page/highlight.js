/** Find the words that support a label in a text, as the witness "words" reads it (denn/witnesses/ngrams.py). */

const IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"; // written without spaces: each is a word
const WORD = new RegExp(`[${IDEOGRAPHS}]|(?:(?![${IDEOGRAPHS}])[\\p{L}\\p{N}_]){1,40}`, "gu");

/** Return the words of a text in lower case, each with the place of its characters in the text. */
export function wordsOf(text) {
  const places = lowerCasePlaces(text);
  return [...text.toLowerCase().matchAll(WORD)].map(({ 0: word, index }) => ({
    word, begin: places(index), end: places(index + word.length - 1, true),
  }));
}

/**
 * Return the parts of a text to highlight, in order and without overlaps.
 * @param {{word: string, begin: number, end: number}[]} words see `wordsOf`
 * @param {{word: string, weight: number}[]} support words and pairs of adjacent words; a pair is joined by a space
 * @returns {{begin: number, end: number, weight: number}[]}
 */
export function highlights(words, support) {
  const weights = new Map(support.map(({ word, weight }) => [word, weight]));
  const found = [];
  const add = (first, last, weight) => found.push({ begin: words[first].begin, end: words[last].end, weight });
  words.forEach(({ word }, place) => {
    if (weights.has(word)) add(place, place, weights.get(word));
    const pair = place + 1 < words.length && `${word} ${words[place + 1].word}`;
    if (pair && weights.has(pair)) add(place, place + 1, weights.get(pair));
  });
  return merged(found);
}

function merged(parts) {
  const whole = [];
  for (const part of parts.sort((a, b) => a.begin - b.begin)) {
    const last = whole.at(-1);
    if (last && part.begin < last.end) {
      last.end = Math.max(last.end, part.end);
      last.weight = Math.max(last.weight, part.weight);
    } else whole.push({ ...part });
  }
  return whole;
}

/**
 * Return a function from a place in the text in lower case to one in the text: some letters become two, such as İ.
 * What a letter becomes may depend on its neighbours, such as Σ, but never how many.
 */
function lowerCasePlaces(text) {
  const places = [];
  let at = 0;
  for (const character of text) {
    const size = character.toLowerCase().length;
    for (let step = 0; step < size; step++) places.push([at, at + character.length]);
    at += character.length;
  }
  return (place, end = false) => places[place][end ? 1 : 0];
}
