/** Drawing: one or two draws at a time, from the request to the last frame. */

import { Recording } from "./recording.js";
import { ServerError } from "./api.js";

const HOLE = /\[MASK(?::(\d+))?\]/;

export class Drawing {
  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.api = api;
    this.stop = new AbortController();
  }

  /** End the draws that are under way. */
  cancel() {
    this.stop.abort();
    this.stop = new AbortController();
  }

  /**
   * Draw all at once; earlier draws end.
   * @param {{flow: object, title: string, settings: object}[]} draws @param {((object | null)[] | null)[]} prompts one per draw
   * @param {{open: Function, extend: Function, fail: Function}} on
   *   open(i, recording), extend(i, recording) after each event and fail(i, error)
   */
  async start(draws, prompts, on) {
    this.cancel();
    const { signal } = this.stop;
    await Promise.all(draws.map(async ({ flow, title, settings }, i) => {
      const recording = new Recording(flow, title, settings);
      const { steps, ...others } = settings, prompt = prompts[i];
      const request = { flow: flow.id, prompt, ...others, ...(steps === null ? {} : { steps }) };
      if (prompt) request.length = prompt.length;
      try {
        await this.api.draw(request, (name, data) => {
          if (signal.aborted) return;
          recording.take(name, data);
          if (name === "start") on.open(i, recording);
          else on.extend(i, recording);
        }, signal);
      } catch (error) {
        if (!signal.aborted) on.fail(i, error);
      }
    }));
    return !signal.aborted;
  }

  /**
   * A prompt that is typed: its tokens, then holes up to the length; null if the text is empty.
   * The text between two holes is tokenized separately.
   */
  async prompt(flow, text, length) {
    if (!text) return null;
    const entries = [];
    for (let rest = text; rest; ) {
      const hole = HOLE.exec(rest);
      const before = hole ? rest.slice(0, hole.index) : rest;
      if (before) entries.push(...(await this.api.tokens(flow.id, before)).map(({ id }) => ({ id })));
      if (hole) entries.push(...new Array(Math.min(Number(hole[1] ?? 1), length + 1)).fill(null));
      rest = hole ? rest.slice(hole.index + hole[0].length) : "";
    }
    if (entries.length > length) {
      throw new ServerError(`The prompt has ${entries.length} tokens and holes, the length is ${length}. Shorten the prompt or set a larger length.`);
    }
    while (entries.length < length) entries.push(null);
    if (entries.every(Boolean)) {
      throw new ServerError("There is nothing to draw: the prompt fills the length. Set a larger length or add [MASK].");
    }
    return entries;
  }
}
