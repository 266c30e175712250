/** Edit: the tokens of a sequence, each a hole to be drawn or pinned. */

/** @typedef {{from: number, to: number}} Range  positions from `from` up to, but without, `to` */

export class Edit {
  /** @param {import("./text.js").Token[]} tokens @param {boolean[]} holes */
  constructor(tokens, holes) {
    this.tokens = tokens.slice();
    this.holes = holes.slice();
    /** The positions whose tokens were typed. */
    this.changed = holes.map(() => false);
  }

  /** Every token is pinned. */
  static of(tokens) {
    return new Edit(tokens, tokens.map(() => false));
  }

  get count() { return this.holes.reduce((sum, hole) => sum + hole, 0); }

  /** Whether there is something to draw: the holes, or everything but the changed tokens. */
  get drawable() { return this.count > 0 || (this.changed.includes(true) && this.changed.includes(false)); }

  /** Make holes of these positions; pin them if they all are holes. */
  toggle({ from, to }) {
    const makeHoles = !this.holes.slice(from, to).every(Boolean);
    this.holes.fill(makeHoles, from, to);
  }

  /** Holes become pinned, pinned tokens become holes. */
  invert() {
    this.holes = this.holes.map((hole) => !hole);
  }

  /** Put other tokens in the place of these positions, and pin them. */
  replace({ from, to }, tokens) {
    this.tokens.splice(from, to - from, ...tokens);
    this.holes.splice(from, to - from, ...tokens.map(() => false));
    this.changed.splice(from, to - from, ...tokens.map(() => true));
  }

  /** The prompt of a draw: one entry per position, null for a hole. Without a hole only the changed tokens are kept. */
  prompt() {
    const kept = this.count ? this.holes.map((hole) => !hole) : this.changed;
    return this.tokens.map(([id], i) => (kept[i] ? { id } : null));
  }
}

/**
 * The word around a position: tokens up to the next blank. A blank is a word by itself.
 * @param {string[]} texts @returns {Range}
 */
export function wordAround(texts, position) {
  const blank = (i) => !texts[i].trim() || texts[i] === "⏎";
  const joins = (i) => i > 0 && i < texts.length && !blank(i - 1) && !blank(i)
    && !/^\s/.test(texts[i]) && !/[\s⏎]$/.test(texts[i - 1]);
  let from = position, to = position + 1;
  while (joins(from)) from -= 1;
  while (joins(to)) to += 1;
  return { from, to };
}
