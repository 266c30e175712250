/** Texts of tokens as they are shown: symbols for control characters, as in system/safe_text.py. */

export const MASK = "░", END = "␃", NOTHING = "∅";
const CONTROL = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
const STRONG = /[A-Za-z\u00c0-\u058f]|([\u0591-\u08ff\ufb1d-\ufdff\ufe70-\ufeff])/;

/** @typedef {[number, string]} Token  id and text */

/** @param {string} character */
function symbol(character) {
  if (character === "\n") return "⏎";
  if (character === "\x7f") return "␡";
  return character < " " ? String.fromCodePoint(0x2400 + character.codePointAt(0)) : "\ufffd";
}

/** The text with a symbol for each control character; nothing in it moves, hides or reverses other text. */
export function harmless(text) {
  return text.replace(CONTROL, symbol);
}

/**
 * The text of a token as it is shown. A token from `data` on is a mask.
 * @param {Token} token @param {number} data
 */
export function shown([id, text], data) {
  if (id >= data) return MASK;
  if (text === "<|endoftext|>") return END;
  return harmless(text) || NOTHING;
}

const NAMES = { [MASK]: "mask", [END]: "end of text", [NOTHING]: "empty token", "⏎": "line break", "␉": "tab" };

/** The name of a token for a screen reader, which does not read blanks and symbols. */
export function spoken(text) {
  return NAMES[text] ?? (text.trim() ? text.trim() : text.length > 1 ? `${text.length} blanks` : "blank");
}

/** A token between quotation marks. */
export function quoted(text) {
  return `“${text}”`;
}

/** The width of a text in columns of a monospaced font. */
export function columns(text) {
  let sum = 0;
  for (const letter of text) sum += WIDE.test(letter) ? 2 : 1;
  return sum;
}

/** The writing direction of a text: that of its first letter. */
export function direction(text) {
  return STRONG.exec(text)?.[1] ? "rtl" : "ltr";
}

/** A number with at most `digits` decimals and a comma between thousands. */
export function formatted(number, digits = 0) {
  const rounded = Number(number).toFixed(digits);
  const [whole, part] = (digits ? rounded.replace(/\.?0+$/, "") : rounded).split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : "");
}

/** "1 hop", "2 hops" */
export function counted(number, noun) {
  return `${formatted(number)} ${noun}${number === 1 ? "" : "s"}`;
}
