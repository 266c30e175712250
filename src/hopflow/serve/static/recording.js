/** Recording: one sequence from its source tokens to its text, hop by hop. It grows while the server draws. */

/** @typedef {{position: number, before: import("./text.js").Token, after: import("./text.js").Token}} Hop */
/** @typedef {{t: number, hops: Hop[], jumps: number, calls: number}} Frame */

export class Recording {
  /** @param {object} flow an entry of /api/flows @param {string} title @param {{steps: number?, eta: number}} settings */
  constructor(flow, title, settings) {
    Object.assign(this, { flow, title, settings, x0: [], fixed: [], command: "", python: "", seconds: null, rate: null });
    /** @type {Frame[]} */
    this.frames = [];
    this.complete = false;
    /** The number of hops of each position; with `last`, it tells whether a token is final. */
    this.hopsOf = [];
    this.last = [];
    this.startedAt = 0;
  }

  /** Take one event of the stream of a draw. */
  take(name, data) {
    if (name === "start") {
      Object.assign(this, { x0: data.x0, fixed: data.fixed, command: data.command, python: data.python });
      this.hopsOf = data.x0.map(() => 0);
      this.last = data.x0.slice();
      this.startedAt = performance.now();
    } else if (name === "frame") {
      const hops = data.hops.map(([position, before, after]) => ({ position, before, after }));
      this.frames.push({ t: data.t, hops, jumps: data.jumps, calls: data.calls });
      for (const { position, after } of hops) {
        this.hopsOf[position] += 1;
        this.last[position] = after;
      }
    } else if (name === "end") {
      this.complete = true;
      this.seconds = data.seconds;
      this.rate = data.tokens_per_second;
      this.text = data.text;
      this.totals = { jumps: data.jumps, calls: data.calls };
    }
  }

  get length() { return this.x0.length; }

  /** Until when the sequence is known: at a time t, hops before t have happened. */
  get knownUntil() {
    if (this.complete) return 1;
    return this.frames.length ? Math.min(1, this.frames.at(-1).t + 1e-6) : 0;
  }

  /** How many frames have happened at time t. */
  framesBefore(t) {
    if (t >= 1) return this.frames.length;
    let low = 0, high = this.frames.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.frames[middle].t < t) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Hops and network calls at time t. */
  countsAt(t) {
    if (t >= 1 && this.complete) return this.totals;
    const { jumps, calls } = this.frames[this.framesBefore(t) - 1] ?? { jumps: 0, calls: 0 };
    return { jumps, calls };
  }

  /** Tokens per second: the server's measurement, or what has arrived so far. */
  get tokensPerSecond() {
    if (this.rate !== null) return this.rate;
    const seconds = (performance.now() - this.startedAt) / 1000;
    return this.frames.length && seconds > 0.2 ? this.length * this.knownUntil / seconds : null;
  }

  /** Hops predicted from the coupling for the positions that are drawn, or null. */
  get predictedHops() {
    const { predicted_hops: hops, predicted_hops_length: length } = this.flow;
    const free = this.fixed.reduce((sum, fixed) => sum + !fixed, 0);
    return hops === null || hops === undefined || !length ? null : hops * free / length;
  }

  /** The hops of one position before time t, as `{t, before, after}`. */
  historyOf(position, t) {
    return this.frames.slice(0, this.framesBefore(t)).flatMap((frame) => frame.hops
      .filter((hop) => hop.position === position).map(({ before, after }) => ({ t: frame.t, before, after })));
  }

  /** What a saved page needs to play it. */
  saved() {
    const { description, vocab, disjoint, predicted_hops, predicted_hops_length } = this.flow;
    return {
      flow: { description, vocab, disjoint, predicted_hops, predicted_hops_length }, title: this.title, settings: this.settings,
      x0: this.x0, fixed: this.fixed, command: this.command, python: this.python,
      frames: this.frames.map(({ t, hops, jumps, calls }) => ({
        t, jumps, calls, hops: hops.map(({ position, before, after }) => [position, before, after]),
      })),
      end: { text: this.text, seconds: this.seconds, tokens_per_second: this.rate, ...this.totals },
    };
  }

  /** The recording of a saved page. */
  static restored(content) {
    const recording = new Recording(content.flow, content.title, content.settings);
    recording.take("start", content);
    for (const frame of content.frames) recording.take("frame", frame);
    recording.take("end", content.end);
    return recording;
  }
}
