// @ts-check
// Functions of all scripts: the run, elements of the page, and text.

/** @import { Item, Layer, Picture, Run, Step } from "./page.d.ts" */

/** @type {Run} */
export const run = JSON.parse(document.getElementById("run").textContent);
/** @type {<Of extends Element = HTMLElement>(selector: string, root?: ParentNode) => Of} */
export const find = (selector, root = document) => root.querySelector(selector);

/** @type {(selector: string, root?: ParentNode) => HTMLElement[]} */
export const findAll = (selector, root = document) => [...root.querySelectorAll(/** @type {"div"} */ (selector))];
/** @type {(root: ParentNode) => HTMLInputElement[]} */
export const inputsIn = (root) => [...root.querySelectorAll("input")];
// The nearest element that matches a selector, from the target of an event upwards.
/** @type {(event: { target: EventTarget | null }, selector: string) => HTMLElement | null} */
export const around = ({ target }, selector) => /** @type {HTMLElement} */ (target).closest(selector);

// Invisible characters, and those that reverse the text after them, are shown as escapes.
/** @type {(value: unknown) => string} */
export const visible = (value) => String(value).replace(
  /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu,
  (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`,
);

/** @type {<Tag extends keyof HTMLElementTagNameMap>(tag: Tag, className?: string, text?: unknown) => HTMLElementTagNameMap[Tag]} */
export function make(tag, className = "", text = null) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== null) element.textContent = visible(text);
  return element;
}

// A name that is too wide is cut in its middle, since long names differ at their ends. Screen readers read it whole.
/** @type {(name: string, className?: string) => HTMLElement[]} */
export function cutName(name, className = "") {
  const [, head, tail] = visible(name).match(/^(.{6,}?)((?:\P{M}\p{M}*){12})$/su) ?? [];
  if (!head) return [make("span", className, name)];
  const cut = make("span", "cut");
  cut.setAttribute("aria-hidden", "true");
  cut.append(make("span", "", head), make("span", "", tail));
  return [cut, make("span", `${className} unseen`, name)];
}

/** @type {(name: string) => string} */
export const withoutNumber = (name) => name.replace(/^\d+ /, "");

/** @type {(unit: string) => string[]} */
export function nameParts(unit) {
  const cut = unit.lastIndexOf("/") + 1;
  return [unit.slice(0, cut), unit.slice(cut)];
}

// True on the page of two runs, where `of` of each image lists its entry in either run.
export const paired = Boolean(run.runs);

// The steps of a film are its frames.
/** @type {(item: Item) => string} */
export const wordOf = (item) => item.word ?? "step";
/** @type {(item: Item, step: Step | null) => string} */
export const nameAt = (item, step) => (step ? `${item.unit}, ${wordOf(item)} ${step.step}` : item.unit);

/** @type {(value: number | null) => string} */
export const number = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(5))) : "none");

/** @type {(value: number) => string} */
export function share(value) {
  const percent = value * 100;
  if (percent > 0 && percent < 0.01) return "< 0.01 %";
  if (percent < 100 && percent > 99.99) return "> 99.99 %";
  return `${Number(percent.toFixed(2))} %`;
}

/** @type {(layer: Layer) => string} */
export const shape = (layer) => layer.shape.join(" \u00d7 ");
/** @type {(...parts: string[]) => string} */
export const words = (...parts) => parts.join(" ").toLowerCase();

/** @type {(amount: number | undefined, noun: string) => string} */
export const count = (amount, noun) => `${amount} ${noun}${amount === 1 ? "" : "s"}`;

let speaking = 0;
/** @type {(text: string, delay?: number) => void} */
export function say(text, delay = 0) {
  clearTimeout(speaking);
  speaking = setTimeout(() => { find("#spoken").textContent = visible(text); }, delay);
}

/** @type {(value: number, low: number, high: number) => number} */
export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

export const LETTERS = ["A", "B"];

export const narrow = matchMedia("(max-width: 720px)");

/** @type {(picture: Picture, name: string) => string} */
export const factOf = (picture, name) => picture.facts.find(([key]) => key === name)?.[1] ?? "";

/** @type {(name: string, ...values: (string | Node)[]) => HTMLElement} */
export function factPair(name, ...values) {
  const pair = make("div");
  const fact = make("dd");
  fact.append(...values.map((value) => (typeof value === "string" ? visible(value) : value)));
  pair.append(make("dt", "", name), fact);
  return pair;
}
