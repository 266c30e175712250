/** TokenView: the tokens of one sequence on the page, each with its text and its state. */

import { columns, direction, shown, spoken } from "./text.js";
import { wordAround } from "./edit.js";

const GLOW = 0.06;
/** How long a hop is highlighted, in units of t. */
export const STATES = {
  source: "noise", moved: "just hopped", hopped: "hopped, may hop again", final: "final", pinned: "pinned", hole: "hole",
};

export class TokenView {
  /**
   * @param {HTMLElement} place
   * @param {{toggle?: Function, type?: Function, inspect?: Function}} actions
   *   toggle(range), type(range, text) and inspect(position or null)
   */
  constructor(place, actions) {
    Object.assign(this, { place, actions, recording: null, edit: null, focused: 0 });
    /** @type {HTMLSpanElement[]} */
    this.spans = [];
    this.role = actions.toggle ? "button" : "listitem"; // a saved page has nothing to press
    place.setAttribute("role", actions.toggle ? "group" : "list");
    place.addEventListener("click", (event) => this.#click(event));
    place.addEventListener("keydown", (event) => this.#key(event));
    place.addEventListener("focusin", (event) => this.#inspect(event));
    place.addEventListener("focusout", () => actions.inspect?.(null));
    place.addEventListener("pointerover", (event) => this.#inspect(event));
    place.addEventListener("pointerleave", () => actions.inspect?.(null));
  }

  /** Show another recording from its beginning. */
  open(recording) {
    Object.assign(this, { recording, edit: null, applied: 0, t: 0, complete: false });
    this.tokens = recording.x0.slice();
    this.times = recording.x0.map(() => []);
    this.recent = new Set();
    this.#resize(recording.length);
    this.place.dir = "ltr";
    this.#drawAll();
  }

  /** Show the recording at time t: only tokens that differ are written. */
  show(t, animated = false) {
    const { recording } = this, until = recording.framesBefore(t);
    if (t < this.t) this.#highlightAgain(recording.framesBefore(t - GLOW), until);
    const changed = new Set(this.recent);
    this.t = t;
    for (; this.applied < until; this.applied += 1) {
      const { t: at, hops } = recording.frames[this.applied];
      for (const { position, after } of hops) {
        this.tokens[position] = after;
        this.times[position].push(at);
        this.recent.add(position);
        changed.add(position);
        if (animated) this.#hop(this.spans[position]);
      }
    }
    for (; this.applied > until; this.applied -= 1) {
      for (const { position, before } of recording.frames[this.applied - 1].hops) {
        this.tokens[position] = before;
        this.times[position].pop();
        this.recent.add(position);
        changed.add(position);
      }
    }
    const settled = recording.complete && t >= 1;
    const redraw = this.complete !== recording.complete || settled !== this.settled;
    this.complete = recording.complete;
    if (redraw) this.#drawAll();
    else for (const position of changed) this.#draw(position);
    for (const position of this.recent) if (this.#state(position) !== "moved") this.recent.delete(position);
  }

  /** Positions that hopped in these frames are highlighted at an earlier time, although none of their hops is undone. */
  #highlightAgain(from, to) {
    for (const { hops } of this.recording.frames.slice(from, to)) for (const { position } of hops) this.recent.add(position);
  }

  /** Show holes and pinned tokens; null returns to the recording. */
  showEdit(edit) {
    this.edit = edit;
    this.#resize((edit ?? this.recording).tokens?.length ?? this.recording.length);
    this.#drawAll();
  }

  /** Move the keyboard to a token, or to the one that was reached last. */
  focus(position = this.focused) {
    this.#moveFocus(position, true);
  }

  get settled() { return this.place.classList.contains("settled"); }

  #resize(length) {
    const extra = Array.from({ length: Math.max(0, length - this.spans.length) }, () => {
      const span = document.createElement("span");
      span.setAttribute("role", this.role);
      span.tabIndex = -1;
      return span;
    });
    for (const span of this.spans.splice(length)) span.remove();
    this.spans.push(...extra);
    this.place.append(...extra);
    this.spans.forEach((span, i) => {
      span.dataset.position = String(i);
      span.className = "";
      span.style.minWidth = "";
    });
    this.written = this.spans.map(() => ({ text: null, state: null, columns: 0 }));
    this.#moveFocus(Math.min(this.focused, length - 1), false);
  }

  #drawAll() {
    const settled = this.edit !== null || (this.recording.complete && this.t >= 1);
    this.place.classList.toggle("settled", settled);
    if (settled) this.place.dir = direction(this.recording.text ?? "");
    for (let i = 0; i < this.spans.length; i += 1) this.#draw(i);
  }

  #draw(position) {
    const span = this.spans[position], written = this.written[position];
    const text = shown(this.#tokenAt(position), this.recording.flow.vocab.data), state = this.#state(position);
    if (text !== written.text) {
      written.text = text;
      span.textContent = text;
      span.classList.toggle("break", text.endsWith("⏎"));
      span.classList.toggle("symbol", /^[␀-␡∅░⏎]+$/.test(text));
      const wide = columns(text);
      if (wide > written.columns) { // a place does not shrink, so that its neighbours rest
        written.columns = wide;
        span.style.minWidth = `${wide}ch`;
      }
      this.#label(span, text, state);
    }
    if (state !== written.state) {
      if (written.state) span.classList.remove(written.state);
      span.classList.add("token", state);
      written.state = state;
      this.#label(span, text, state);
    }
  }

  #tokenAt(position) {
    return this.edit ? this.edit.tokens[position] : this.tokens[position];
  }

  #label(span, text, state) {
    const special = state === "hole" || state === "pinned" ? `, ${state}` : "";
    span.setAttribute("aria-label", spoken(text) + special);
    if (this.edit) span.setAttribute("aria-pressed", String(state === "hole"));
    else span.removeAttribute("aria-pressed");
  }

  /** @returns {keyof typeof STATES} */
  #state(position) {
    if (this.edit) return this.edit.holes[position] ? "hole" : "pinned";
    const { recording, t } = this, times = this.times[position];
    if (recording.fixed[position]) return "pinned";
    if (recording.complete && t >= 1) return "final";
    if (!times.length) return "source";
    if (t - times.at(-1) < GLOW) return "moved";
    const last = recording.flow.disjoint || (recording.complete && times.length === recording.hopsOf[position]);
    return last ? "final" : "hopped";
  }

  /** Two equal animations take turns, so that each hop starts one. */
  #hop(span) {
    span.classList.toggle("hop-b", span.classList.toggle("hop-a") === false);
  }

  // -- pointer and keyboard ---------------------------------------------------------------------------------------

  #positionOf(event) {
    const span = event.target.closest?.("[data-position]");
    return span ? Number(span.dataset.position) : null;
  }

  /** The word around a position, or with Shift its token. */
  #range(position, event) {
    const data = this.recording.flow.vocab.data;
    if (event.shiftKey) return { from: position, to: position + 1 };
    const { tokens } = this.edit ?? { tokens: this.recording.last }; // words are those of the text, also during its hops
    return wordAround(tokens.map((token) => shown(token, data)), position);
  }

  #click(event) {
    const position = this.#positionOf(event);
    if (position === null) return;
    this.#moveFocus(position, true);
    this.actions.toggle?.(this.#range(position, event));
  }

  #inspect(event) {
    const position = this.#positionOf(event);
    if (position === null) return;
    if (event.type === "focusin") this.#moveFocus(position, false);
    this.actions.inspect?.(position);
  }

  #key(event) {
    const position = this.#positionOf(event), last = this.spans.length - 1;
    if (position === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const forward = this.place.dir === "rtl" ? -1 : 1;
    const moves = {
      ArrowRight: position + forward, ArrowLeft: position - forward, Home: 0, End: last,
      ArrowDown: this.#below(position, 1), ArrowUp: this.#below(position, -1),
    };
    if (event.key in moves) this.#moveFocus(Math.min(last, Math.max(0, moves[event.key])), true);
    else if (event.key === "Enter" || event.key === " ") this.actions.toggle?.(this.#range(position, event));
    else if (event.key === "Escape") this.actions.inspect?.(null);
    else if (Array.from(event.key).length === 1) this.actions.type?.(this.#range(position, { shiftKey: false }), event.key);
    else return;
    event.preventDefault();
  }

  /** The nearest token of the next or previous line. */
  #below(position, step) {
    const here = this.spans[position].getBoundingClientRect();
    let line = null, found = position;
    for (let i = position + step; i >= 0 && i < this.spans.length; i += step) {
      const box = this.spans[i].getBoundingClientRect();
      if (line === null && Math.abs(box.top - here.top) > here.height / 2) line = box.top;
      if (line === null) continue;
      if (Math.abs(box.top - line) > here.height / 2) break;
      found = i;
      if (step > 0 ? box.left >= here.left : box.left <= here.left) break;
    }
    return found;
  }

  /** One token at a time can be reached with Tab; the arrow keys move it. */
  #moveFocus(position, focus) {
    const before = this.spans[this.focused], span = this.spans[position];
    if (before) before.tabIndex = -1;
    this.focused = Math.max(0, position);
    if (!span) return;
    span.tabIndex = 0;
    if (focus) span.focus();
  }
}
