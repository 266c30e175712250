/* Plays the data of report/animation.py: the tokens at time t, and the controls. No text becomes markup. */
const hopAnimation = (() => {
  "use strict";
  const MASK = "░", MAX_MASK_WIDTH = 12, ENDS = "⏎";
  const SECONDS = 6, STEP = 0.1;

  /** Tokens, states and hops of one sequence at time t, the same as `frames_at` in report/animation.py. */
  function stateAt(animation, sequence, t) {
    const hops = sequence.hops, tokens = sequence.source.slice();
    const left = new Array(tokens.length).fill(0), states = new Array(tokens.length).fill("source");
    for (let i = 0; i < hops.length; i += 3) left[hops[i + 1]] += 1;
    let jumps = 0;
    for (let i = 0; i < hops.length; i += 3) {
      const at = animation.times[hops[i]], position = hops[i + 1];
      if (at >= t) break; // hops are in the order of time
      tokens[position] = hops[i + 2];
      left[position] -= 1;
      jumps += 1;
      states[position] = left[position] || t - at < animation.glow ? "moved" : "final";
    }
    if (t >= 1) states.fill("final");
    for (const position of sequence.prompt) states[position] = "prompt";
    return { tokens, states, jumps };
  }

  function final(sequence) {
    const tokens = sequence.source.slice(), hops = sequence.hops;
    for (let i = 0; i < hops.length; i += 3) tokens[hops[i + 1]] = hops[i + 2];
    return tokens;
  }

  function shown(animation, token, end) {
    if (token >= 0) return animation.texts[token];
    return MASK.repeat(end < 0 ? 1 : Math.min(MAX_MASK_WIDTH, Array.from(animation.texts[end]).length));
  }

  const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

  /** The largest width of each position at any time, in letters; letters of some scripts count twice. */
  function widths(animation, sequence) {
    const end = final(sequence), hops = sequence.hops;
    const size = (token, i) => Array.from(shown(animation, token, end[i]))
      .reduce((sum, letter) => sum + (WIDE.test(letter) ? 2 : 1), 0);
    const found = sequence.source.map(size);
    for (let i = 0; i < hops.length; i += 3) {
      found[hops[i + 1]] = Math.max(found[hops[i + 1]], size(hops[i + 2], hops[i + 1]));
    }
    return found;
  }

  /** Positions at which lines of the final text begin. Every token fits at all times, so that lines do not move. */
  function breaks(texts, widths, room) {
    const starts = [0];
    let used = 0, blank = 0;
    for (let i = 0; i < texts.length; i += 1) {
      const start = starts[starts.length - 1];
      if (/^\s/.test(texts[i])) blank = i;
      if (used + widths[i] > room && i > start) {
        starts.push(blank > start ? blank : i);
        used = widths.slice(starts[starts.length - 1], i).reduce((sum, width) => sum + width, 0);
      }
      used += widths[i];
      if (/\s$/.test(texts[i])) blank = i + 1;
      if (texts[i].endsWith(ENDS) && i + 1 < texts.length) {
        starts.push(i + 1);
        used = 0;
      }
    }
    return starts;
  }

  class Line {
    /** One sequence of an animation, in its place on the page. */
    constructor(animation, sequence, place, count) {
      Object.assign(this, { animation, sequence, place, count, end: final(sequence), room: 0 });
      this.widths = widths(animation, sequence);
      this.spans = this.end.map(() => document.createElement("span"));
    }

    wrap() {
      const probe = document.createElement("span");
      probe.textContent = "0".repeat(20);
      this.place.append(probe);
      const wide = probe.getBoundingClientRect().width / 20;
      probe.remove();
      const room = Math.max(8, Math.floor(this.place.clientWidth / (wide || 8)) - 1);
      if (room === this.room) return;
      this.room = room;
      const starts = breaks(this.end.map((token) => shown(this.animation, token, token)), this.widths, room);
      const lines = starts.map((start, i) => {
        const line = document.createElement("span");
        line.className = "hop-line";
        line.append(...this.spans.slice(start, starts[i + 1]));
        return line;
      });
      this.place.replaceChildren(...lines);
    }

    show(t) {
      const now = stateAt(this.animation, this.sequence, t);
      now.tokens.forEach((token, i) => {
        const text = shown(this.animation, token, this.end[i]), name = "hop-" + now.states[i];
        if (this.spans[i].textContent !== text) this.spans[i].textContent = text;
        if (this.spans[i].className !== name) this.spans[i].className = name;
      });
      this.count.textContent = String(now.jumps);
      return now.jumps;
    }
  }

  class Player {
    constructor(figure) {
      const animation = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
      this.figure = figure;
      this.slider = figure.querySelector("input[type='range']");
      this.button = figure.querySelector("button");
      this.reducedMotion = window.matchMedia("(prefers-reduced-motion: reduce)");
      this.started = null; // the time of t = 0 while it plays, null otherwise
      const places = figure.querySelectorAll(".hop-text"), counts = figure.querySelectorAll(".hop-count");
      this.lines = animation.sequences.map((sequence, i) => new Line(animation, sequence, places[i], counts[i]));
    }

    start() {
      this.figure.querySelectorAll("[hidden]").forEach((part) => { part.hidden = false; });
      this.slider.addEventListener("input", () => { this.pause(); this.show(); });
      this.button.addEventListener("click", () => this.press());
      this.reducedMotion.addEventListener("change", () => { this.pause(); });
      new ResizeObserver(() => this.lines.forEach((line) => line.wrap())).observe(this.figure);
      this.lines.forEach((line) => line.wrap());
      this.pause();
      this.show();
    }

    get t() { return Number(this.slider.value) / Number(this.slider.max); }
    set t(value) { this.slider.value = String(Math.round(Math.min(1, value) * Number(this.slider.max))); }

    show() {
      const jumps = this.lines.reduce((sum, line) => sum + line.show(this.t), 0), time = this.t.toFixed(2);
      this.figure.querySelector(".hop-time").textContent = time;
      this.figure.querySelector(".hop-total").textContent = String(jumps);
      this.slider.setAttribute("aria-valuetext", "t = " + time + ", " + jumps + " hops");
    }

    /** With reduced motion, each press moves the slider by a tenth. */
    press() {
      if (this.started !== null) { this.pause(); return; }
      const from = this.t >= 1 ? 0 : this.t;
      if (this.reducedMotion.matches) { this.t = this.t >= 1 ? 0 : from + STEP; this.show(); return; }
      this.started = performance.now() - 1000 * SECONDS * from;
      this.label("❚❚", "Pause");
      requestAnimationFrame((now) => this.frame(now));
    }

    frame(now) {
      if (this.started === null) return;
      this.t = Math.max(0, (now - this.started) / (1000 * SECONDS));
      this.show();
      if (this.t >= 1) this.pause();
      else requestAnimationFrame((later) => this.frame(later));
    }

    pause() {
      this.started = null;
      this.label(this.reducedMotion.matches ? "▶❙" : "▶", this.reducedMotion.matches ? "Step" : "Play");
    }

    label(sign, name) {
      this.button.textContent = sign;
      this.button.setAttribute("aria-label", name);
    }
  }

  if (typeof document !== "undefined") {
    document.querySelectorAll(".player").forEach((figure) => new Player(figure).start());
  }
  return { stateAt, final, shown, widths, breaks };
})();
