// Text, and the elements that hold it.

export const run = JSON.parse(document.getElementById("run").textContent);
export const find = (selector, root = document) => root.querySelector(selector);

// Invisible characters, and those that reverse the text after them, are shown as escapes.
export const visible = (value) => String(value).replace(
  /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu,
  (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`,
);

export function make(tag, className = "", text = null) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== null) element.textContent = visible(text);
  return element;
}

// A name that is too wide is cut in its middle, since long names differ at their ends. The two pieces are only visual.
export function cutName(name, className = "") {
  const [, head, tail] = visible(name).match(/^(.{6,}?)((?:\P{M}\p{M}*){12})$/su) ?? [];
  if (!head) return [make("span", className, name)];
  const cut = make("span", "cut");
  cut.setAttribute("aria-hidden", true);
  cut.append(make("span", "", head), make("span", "", tail));
  return [cut, make("span", `${className} unseen`, name)];
}

export const withoutNumber = (name) => name.replace(/^\d+ /, "");

export function nameParts(unit) {
  const cut = unit.lastIndexOf("/") + 1;
  return [unit.slice(0, cut), unit.slice(cut)];
}

// The page of two runs: each of its images lists in `of` what either run has of it.
export const paired = Boolean(run.runs);

// The steps of a film are its frames.
export const wordOf = (item) => item.word ?? "step";
export const nameAt = (item, step) => (step ? `${item.unit}, ${wordOf(item)} ${step.step}` : item.unit);

export const number = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(5))) : "none");

export function share(value) {
  const percent = value * 100;
  if (percent > 0 && percent < 0.01) return "< 0.01 %";
  if (percent < 100 && percent > 99.99) return "> 99.99 %";
  return `${Number(percent.toFixed(2))} %`;
}

export const shape = (layer) => layer.shape.join(" \u00d7 ");
export const words = (...parts) => parts.join(" ").toLowerCase();

export const count = (amount, noun) => `${amount} ${noun}${amount === 1 ? "" : "s"}`;

let speaking = 0;
export function say(text, delay = 0) {
  clearTimeout(speaking);
  speaking = setTimeout(() => { find("#spoken").textContent = visible(text); }, delay);
}

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

export const LETTERS = ["A", "B"];

export const narrow = matchMedia("(max-width: 720px)");

export const factOf = (picture, name) => picture.facts.find(([key]) => key === name)?.[1] ?? "";

export function factPair(name, ...values) {
  const pair = make("div");
  const fact = make("dd");
  fact.append(...values.map((value) => (typeof value === "string" ? visible(value) : value)));
  pair.append(make("dt", "", name), fact);
  return pair;
}
