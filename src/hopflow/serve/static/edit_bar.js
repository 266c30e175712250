/** EditBar: makes holes, pins tokens and changes words of a sequence that was drawn. */

import { ServerError } from "./api.js";
import { Edit } from "./edit.js";
import { counted, harmless, quoted } from "./text.js";

const HINT = "Click a word to make it a hole, click it again to pin it, type to change it. Shift-click takes one token.";
const find = (selector) => document.querySelector(selector);

export class EditBar {
  /** @param {import("./api.js").Api} api @param {{draw: Function, show: Function, fail: Function}} actions */
  constructor(api, actions) {
    Object.assign(this, { api, actions, edit: null, panel: null, range: null, longest: Infinity });
    find("#draw-again").addEventListener("click", async () => { if (await this.#change()) actions.draw(true); });
    find("#invert").addEventListener("click", () => { this.edit.invert(); this.#show(); });
    find("#discard").addEventListener("click", () => this.discard());
    find("#change").addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.#change();
      if (event.key === "Escape") this.panel.view.focus();
    });
    this.ready([]);
  }

  /** Say what can be done with these complete sequences; holes that were filled can be drawn again. */
  ready(recordings) {
    const fixed = recordings[0]?.fixed ?? [], pinned = fixed.filter(Boolean).length;
    find("#edit-hint").textContent = pinned ? `${pinned} pinned, ${fixed.length - pinned} drawn. ${HINT}` : recordings.length ? HINT : "";
    this.#tools(pinned > 0, false);
  }

  #tools(visible, editing) {
    find("#edit-tools").hidden = !visible;
    find("#draw-again").disabled = editing && !this.edit.drawable;
    for (const part of find("#edit-tools").querySelectorAll("[data-editing]")) part.hidden = !editing;
  }

  /** Make a word a hole, or pin it. The first click pins all other tokens. */
  toggle(panel, range) {
    this.#begin(panel);
    this.edit.toggle(range);
    this.range = range;
    this.#show();
  }

  /** Begin to change a word: its new text starts with what was typed. */
  type(panel, range, text) {
    this.#begin(panel);
    this.range = range;
    this.#show();
    find("#change").value = text;
    find("#change").focus();
  }

  /** Forget all holes and changes. */
  discard() {
    const { panel } = this;
    Object.assign(this, { edit: null, panel: null, range: null });
    find("#change").value = "";
    this.ready(panel ? [panel.recording] : []);
    if (panel) this.actions.show(panel, null);
  }

  #begin(panel) {
    if (this.panel === panel && this.edit) return;
    this.discard();
    const { recording } = panel;
    this.panel = panel;
    this.edit = recording.fixed.some(Boolean)
      ? new Edit(recording.last, recording.fixed.map((fixed) => !fixed)) : Edit.of(recording.last);
  }

  #show() {
    const { edit, range } = this, pinned = edit.tokens.length - edit.count;
    this.actions.show(this.panel, edit);
    this.#tools(true, true);
    const next = edit.count ? "Draw again to fill the holes." : edit.drawable
      ? "Draw again to keep only what was changed, or click a word to make it a hole." : "Click a word to make it a hole.";
    find("#edit-hint").textContent = `${counted(edit.count, "hole")}, ${pinned} pinned. ${next}`;
    find("#changed-word").textContent = quoted(harmless(edit.tokens.slice(range.from, range.to).map(([, text]) => text).join("")));
  }

  /** Put the typed text in the place of the word: pinned, in as many tokens as it has. Returns false if it cannot be. */
  async #change() {
    const text = find("#change").value, { edit, panel, range } = this;
    if (!text || !edit) return true;
    find("#change").value = "";
    const before = edit.tokens[range.from][1];
    const blank = /^ /.test(before) && before.trim() && !/^\s/.test(text) ? " " : ""; // " the" is one token
    try {
      const tokens = await this.api.tokens(panel.recording.flow.id, blank + text);
      if (this.edit !== edit) return false;
      if (edit.tokens.length - (range.to - range.from) + tokens.length > this.longest) {
        throw new ServerError(`The sequence would have more than ${this.longest} tokens.`);
      }
      edit.replace(range, tokens.map(({ id, text: each }) => [id, each]));
      this.range = { from: range.from, to: range.from + tokens.length };
      this.#show();
      panel.view.focus(range.from);
      return true;
    } catch (error) {
      if (this.edit === edit) find("#change").value ||= text; // to be corrected
      this.actions.fail(error);
      return false;
    }
  }
}
