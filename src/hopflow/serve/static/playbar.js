/** Playbar: play, the slider over t, and the speed; below them what the looks of the tokens mean. */

import { STATES } from "./tokens.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4], STEPS = 1000;

export class Playbar {
  /** @param {HTMLElement} root @param {import("./player.js").Player} player */
  constructor(root, player) {
    this.player = player;
    this.button = element("button", { type: "button", className: "play" });
    this.slider = element("input", { type: "range", min: "0", max: String(STEPS), step: "1", value: "0" });
    this.slider.setAttribute("aria-label", "Time t, from noise to text");
    this.clock = element("span", { className: "clock" }); // not an output, whose every change is spoken
    this.speed = element("select", {}, ...SPEEDS.map((speed) => new Option(`${speed} ×`, String(speed), false, speed === 1)));
    this.speed.setAttribute("aria-label", "Speed");
    this.button.addEventListener("click", () => player.toggle());
    this.slider.addEventListener("input", () => player.seek(Number(this.slider.value) / STEPS));
    this.speed.addEventListener("change", () => { player.speed = Number(this.speed.value); });
    const bar = element("div", { className: "bar" }, this.button, this.slider, this.clock, this.speed);
    root.replaceChildren(bar, legend());
  }

  /** Show the player's state; `spoken` describes it for a screen reader. */
  show(spoken) {
    const { t, playing, finished, reducedMotion } = this.player;
    const [sign, name] = playing ? ["❚❚", "Pause"] : reducedMotion.matches ? ["▶❙", "Step"] : ["▶", "Play"];
    if (this.button.textContent !== sign) {
      this.button.textContent = sign;
      this.button.setAttribute("aria-label", name);
    }
    this.slider.value = String(Math.round(STEPS * t));
    this.slider.disabled = !finished;
    this.slider.setAttribute("aria-valuetext", spoken);
    this.clock.textContent = `t = ${t.toFixed(2)}`;
  }
}

/** A sample of each state of a token. */
function legend() {
  return element("ul", { className: "legend" }, ...Object.entries(STATES).map(([state, name]) => {
    const sample = element("span", { className: `token ${state}`, textContent: "abc" });
    sample.setAttribute("aria-hidden", "true");
    return element("li", {}, sample, name);
  }));
}

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
