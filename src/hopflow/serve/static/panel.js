/** Panel: one flow on the page: its name, its counters and its tokens. */

import { TokenView, STATES } from "./tokens.js";
import { formatted } from "./text.js";

export class Panel {
  /**
   * @param {HTMLElement} root a copy of the panel's template
   * @param {import("./history.js").History} history @param {object} actions toggle(range) and type(range, text)
   */
  constructor(root, history, actions) {
    this.root = root;
    this.part = (name) => root.querySelector(`[data-part="${name}"]`);
    this.t = 0;
    this.recording = null;
    this.view = new TokenView(this.part("tokens"), {
      ...actions,
      inspect: (position) => { this.inspected = position; this.#inspect(); },
    });
    this.history = history;
    /** The position whose history is shown, or null. */
    this.inspected = null;
  }

  /** Show a recording from its beginning. */
  open(recording) {
    const { title } = recording;
    this.recording = recording;
    this.part("title").textContent = title;
    this.part("description").textContent = recording.flow.description ?? "";
    this.part("tokens").setAttribute("aria-label", `Tokens of ${title}`);
    this.fail(null);
    this.view.open(recording);
    this.show(0);
  }

  show(t, animated = false) {
    this.t = t;
    if (!this.recording?.length) return;
    this.view.show(t, animated);
    this.#count();
    if (this.inspected !== null && this.history.shows(this.view.spans[this.inspected])) this.#inspect();
  }

  #inspect() {
    const { inspected, view, recording } = this;
    if (inspected === null || !recording || view.edit) this.history.hide();
    else this.history.show(recording, inspected, this.t, STATES[view.written[inspected].state], view.spans[inspected]);
  }

  /** Show why there is nothing to see; null removes the message. */
  fail(message) {
    this.part("error").textContent = message ?? "";
    this.part("error").hidden = !message;
  }

  #count() {
    const { recording } = this, { jumps, calls } = recording.countsAt(this.t), predicted = recording.predictedHops;
    const rate = recording.tokensPerSecond, { steps, eta } = recording.settings;
    this.part("hops").textContent = formatted(jumps);
    this.part("predicted").textContent = predicted === null ? "" : `≈ ${formatted(predicted)} predicted${eta > 0 ? " for η = 0" : ""}`;
    this.part("calls").textContent = formatted(calls);
    this.part("steps").textContent = steps === null ? "one per token" : `of ${formatted(steps)} steps`;
    this.part("rate").textContent = rate === null ? "–" : formatted(rate, rate < 10 ? 1 : 0);
    const whole = Math.max(1, jumps, 1.25 * (predicted ?? 0));
    this.part("meter").style.visibility = predicted === null ? "hidden" : ""; // there is nothing to compare with
    this.part("bar").style.width = `${100 * jumps / whole}%`;
    this.part("mark").style.left = `${100 * (predicted ?? 0) / whole}%`;
  }
}

/** The difference of the counters of two recordings at time t, the second against the first, in words. */
export function difference(first, second, t) {
  const [a, b] = [first, second].map((recording) => recording.countsAt(t));
  const change = (from, to, noun) => {
    if (from === to) return `the same number of ${noun}s`;
    const by = Math.abs(to - from), share = from > 0 ? ` (${to < from ? "−" : "+"}${formatted(100 * by / from)} %)` : "";
    return `${formatted(by)} ${to < from ? "fewer" : "more"} ${by === 1 ? noun : `${noun}s`}${share}`;
  };
  const parts = [change(a.jumps, b.jumps, "hop"), change(a.calls, b.calls, "network call")];
  return `${second.title} against ${first.title}: ${parts.join(", ")}.`;
}
