/** Player: the time t between noise (0) and text (1), and how it advances. */

export const SECONDS = 6;
/** From noise to text at speed 1. A draw that is faster is shown at this pace; a slower one as it arrives. */
const STEP = 0.1;

export class Player {
  /** @param {() => void} onChange called when t or `playing` has changed */
  constructor(onChange) {
    Object.assign(this, { onChange, t: 0, speed: 1, playing: false, knownUntil: 1, finished: true });
    this.reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
    this.before = null;
    this.request = null;
  }

  /** Start at t = 0 and follow a draw, of which nothing is known yet. */
  follow() {
    Object.assign(this, { t: 0, knownUntil: 0, finished: false });
    this.#run(true);
  }

  /** More of the draw is known. With reduced motion only its end is shown. */
  extend(knownUntil, finished) {
    Object.assign(this, { knownUntil, finished });
    if (finished && this.reducedMotion.matches) this.seek(1);
  }

  seek(t) {
    this.t = Math.min(Math.max(0, t), this.knownUntil);
    this.#run(false);
  }

  /** Play or pause. With reduced motion each call moves t by a tenth. */
  toggle() {
    if (this.playing) this.#run(false);
    else if (this.reducedMotion.matches) this.seek(this.t >= 1 ? 0 : this.t + STEP);
    else {
      if (this.t >= 1) this.t = 0;
      this.#run(true);
    }
  }

  #run(playing) {
    this.playing = playing && !this.reducedMotion.matches;
    this.before = null;
    if (this.playing) this.#next();
    this.onChange();
  }

  #next() {
    this.request ??= requestAnimationFrame((now) => this.#tick(now));
  }

  #tick(now) {
    this.request = null;
    if (!this.playing) return;
    const passed = this.before === null ? 0 : Math.min(now - this.before, 250) / 1000;
    this.before = now;
    const t = Math.min(this.knownUntil, this.t + this.speed * passed / SECONDS);
    if (t !== this.t) {
      this.t = t;
      if (t >= 1) this.playing = false;
      this.onChange();
    }
    if (this.playing) this.#next();
  }
}
