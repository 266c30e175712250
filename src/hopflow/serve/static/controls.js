/** Controls: the form of the page, and the settings that are typed into it. */

/** The page offers the seeds 0 to SEEDS - 1. */
export const SEEDS = 2 ** 31;

const NUMBERS = [
  { name: "steps", label: "Steps", hint: "more steps: closer to continuous time", min: 1, step: 1, powers: true },
  { name: "second_steps", label: "Steps of the second", hint: "the same flow from the same noise", min: 1, step: 1, powers: true },
  { name: "eta", label: "η", hint: "corrector: tokens may return to noise", min: 0, max: 2, step: 0.01, coarse: 0.1 },
  { name: "temperature", label: "Temperature", hint: "0: the most likely token", min: 0, max: 2, step: 0.01, coarse: 0.05 },
  { name: "top_p", label: "Top-p", hint: "1: all tokens", min: 0.01, max: 1, step: 0.01 },
  { name: "length", label: "Length", hint: "tokens", min: 1, step: 1, powers: true },
  { name: "seed", label: "Seed", hint: "the same seed: the same text", min: 0, max: SEEDS - 1, step: 1 },
];
const FEW_STEPS = 4;

export class Controls {
  /** @param {HTMLFormElement} form @param {object} offer the answer of /api/flows */
  constructor(form, offer) {
    Object.assign(this, { form, offer });
    this.defaults = { ...offer.defaults, second_steps: offer.defaults.steps === FEW_STEPS ? 32 : FEW_STEPS };
    this.#choices();
    const limits = { steps: offer.limits.steps, second_steps: offer.limits.steps, length: this.#longest() };
    form.querySelector("#numbers").replaceChildren(
      ...NUMBERS.map((number) => this.#number({ max: limits[number.name], ...number })));
    this.reset();
    form.addEventListener("change", () => this.#adapt());
    form.querySelector("#reset").addEventListener("click", () => this.reset());
  }

  /** Write the defaults into all fields but the prompt. */
  reset() {
    for (const [name, value] of Object.entries(this.defaults)) this.set(name, value);
    this.#adapt();
  }

  /** Write one setting. */
  set(name, value) {
    const field = this.#field(name);
    field.value = String(value);
    field.dispatchEvent(new Event("input"));
  }

  get prompt() { return this.#field("prompt").value; }

  get seed() { return this.#value("seed"); }

  /** The draws that the form asks for, one or two: flow, title and settings. */
  draws() {
    const sampler = this.#sampler(), common = { sampler: sampler.name, seed: this.seed };
    for (const name of ["length", "temperature", "top_p"]) common[name] = this.#value(name);
    common.eta = sampler.has_corrector ? this.#value("eta") : 0;
    const steps = sampler.has_steps ? this.#value("steps") : null;
    const flows = this.#shownFlows();
    if (!this.#twice || steps === null) {
      return flows.map((flow) => ({ flow, title: flow.label, settings: { ...common, steps } }));
    }
    return [steps, this.#value("second_steps")].map((number) => (
      { flow: flows[0], title: `${flows[0].label}, ${number} steps`, settings: { ...common, steps: number } }));
  }

  /** By name: `elements.length` is the number of fields. */
  #field(name) {
    return this.form.elements.namedItem(name);
  }

  #value(name) {
    return Number(this.#field(name).value);
  }

  #shownFlows() {
    const { flows } = this.offer, { value } = this.#field("show");
    return value === "both" ? flows : [flows.find(({ id }) => [`flow ${id}`, `steps ${id}`].includes(value)) ?? flows[0]];
  }

  /** Whether one flow is drawn with two numbers of steps. */
  get #twice() { return this.#field("show").value.startsWith("steps "); }

  #sampler() {
    const { samplers } = this.offer, { value } = this.#field("sampler");
    return samplers.find(({ name }) => name === value) ?? samplers[0];
  }

  #longest() {
    return Math.min(this.offer.limits.length, ...this.offer.flows.map(({ length }) => length.max));
  }

  #choices() {
    const { flows, samplers } = this.offer, show = this.#field("show"), sampler = this.#field("sampler");
    const both = flows.length > 1 ? [new Option("Both flows", "both")] : [];
    show.replaceChildren(...both, ...flows.map(({ id, label }) => new Option(label, `flow ${id}`)),
      ...flows.map(({ id, label }) => new Option(`Few and many steps: ${label}`, `steps ${id}`)));
    const usable = samplers.filter((each) => !each.needs_disjoint || flows.every(({ disjoint }) => disjoint));
    sampler.replaceChildren(...usable.map(({ name, label }) => new Option(label, name)));
  }

  /** Fields that mean nothing for the chosen sampler cannot be used. */
  #adapt() {
    const sampler = this.#sampler(), twice = this.#twice;
    const usable = { steps: sampler.has_steps, second_steps: sampler.has_steps && twice, eta: sampler.has_corrector };
    for (const [name, use] of Object.entries(usable)) {
      for (const field of this.#field(name).closest(".number").querySelectorAll("input")) field.disabled = !use;
    }
    this.#field("second_steps").closest(".number").hidden = !twice;
  }

  /** A slider and a field for one number; the slider of a number of tokens or steps has powers of two. */
  #number({ name, label, hint, min, max, step, coarse = step, powers }) {
    const root = document.createElement("div"), id = `setting-${name}`;
    root.className = "number";
    const text = Object.assign(document.createElement("label"), { htmlFor: id, textContent: label });
    const field = Object.assign(document.createElement("input"), { id, name, type: "number", required: true });
    Object.assign(field, { min: String(min), max: String(max), step: String(step) });
    const small = Object.assign(document.createElement("small"), { className: "hint", id: `${id}-hint`, textContent: hint });
    field.setAttribute("aria-describedby", small.id);
    root.append(text, name === "seed" ? this.#dice(field) : slider(field, label, powers ? "any" : coarse), field, small);
    return root;
  }

  #dice(field) {
    const dice = Object.assign(document.createElement("button"), { type: "button", id: "dice", textContent: "⚄ New seed" });
    dice.addEventListener("click", () => {
      field.value = String(Math.floor(Math.random() * 1e6));
      this.form.requestSubmit();
    });
    return dice;
  }
}

/** A slider beside a field; with the step "any" it has powers of two. */
function slider(field, label, step) {
  const powers = step === "any", to = powers ? Math.log2 : Number;
  const from = powers ? (value) => Math.round(2 ** value) : (value) => Number(value.toFixed(2));
  const range = Object.assign(document.createElement("input"), { type: "range" });
  Object.assign(range, { min: String(to(Number(field.min))), max: String(to(Number(field.max))), step: String(step) });
  range.tabIndex = -1; // the field beside it can be typed into
  range.setAttribute("aria-label", `${label}, slider`);
  const speak = () => range.setAttribute("aria-valuetext", field.value); // its own value may be a power of two
  range.addEventListener("input", () => { field.value = String(from(Number(range.value))); speak(); });
  field.addEventListener("input", () => { range.value = String(to(Math.max(Number(field.min), Number(field.value)))); speak(); });
  return range;
}
