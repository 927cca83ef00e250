// The words of a search, marked for a while in the turn where they were found.

const NAME = "octavo-found"; // of the highlight, in talk.css
const MARKED_MS = 5000;

let timer = null;

/** Mark the words of `wanted` in `element`; returns the range that tells most, null if none of them is there. */
export function markFound(element, wanted) {
  const terms = new Map(wanted.split(/\s+/).filter(Boolean).map((term) => [term.toLocaleLowerCase(), []]));
  const nodes = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const node = nodes.currentNode;
    for (const [term, ranges] of terms) {
      for (const { index } of node.data.matchAll(new RegExp(escaped(term), "giu"))) ranges.push(rangeOf(node, index, term.length));
    }
  }
  const found = [...terms.values()].filter((ranges) => ranges.length);
  if (!found.length) return null;
  show(found.flat());
  return found.reduce((rarest, ranges) => (ranges.length < rarest.length ? ranges : rarest))[0];
}

function rangeOf(node, start, length) {
  const range = new Range();
  range.setStart(node, start);
  range.setEnd(node, Math.min(start + length, node.length));
  return range;
}

/** Without touching the text, where the browser can. */
function show(ranges) {
  if (!globalThis.CSS?.highlights) return;
  clearTimeout(timer);
  CSS.highlights.set(NAME, new Highlight(...ranges));
  timer = setTimeout(() => CSS.highlights.delete(NAME), MARKED_MS);
}

function escaped(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
