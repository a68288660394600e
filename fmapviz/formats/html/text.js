// Text, and the elements that hold it.

const run = JSON.parse(document.getElementById("run").textContent);
const find = (selector, root = document) => root.querySelector(selector);

// Invisible characters, and those that reverse the text after them, are shown as escapes.
const visible = (value) => String(value).replace(
  /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu,
  (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`,
);

function make(tag, className = "", text = null) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== null) element.textContent = visible(text);
  return element;
}

// A name that is too wide is cut in its middle, since long names differ at their ends. The two pieces are only visual.
function cutName(name, className = "") {
  const [, head, tail] = visible(name).match(/^(.{6,}?)((?:\P{M}\p{M}*){12})$/su) ?? [];
  if (!head) return [make("span", className, name)];
  const cut = make("span", "cut");
  cut.setAttribute("aria-hidden", true);
  cut.append(make("span", "", head), make("span", "", tail));
  return [cut, make("span", `${className} unseen`, name)];
}

const withoutNumber = (name) => name.replace(/^\d+ /, "");

function nameParts(unit) {
  const cut = unit.lastIndexOf("/") + 1;
  return [unit.slice(0, cut), unit.slice(cut)];
}

// The page of two runs: each of its images lists in `of` what either run has of it.
const paired = Boolean(run.runs);

// The steps of a film are its frames.
const wordOf = (item) => item.word ?? "step";
const nameAt = (item, step) => (step ? `${item.unit}, ${wordOf(item)} ${step.step}` : item.unit);

const number = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(5))) : "none");

function share(value) {
  const percent = value * 100;
  if (percent > 0 && percent < 0.01) return "< 0.01 %";
  if (percent < 100 && percent > 99.99) return "> 99.99 %";
  return `${Number(percent.toFixed(2))} %`;
}

const shape = (layer) => layer.shape.join(" \u00d7 ");
const words = (...parts) => parts.join(" ").toLowerCase();

const count = (amount, noun) => `${amount} ${noun}${amount === 1 ? "" : "s"}`;

let speaking = 0;
function say(text, delay = 0) {
  clearTimeout(speaking);
  speaking = setTimeout(() => { find("#spoken").textContent = visible(text); }, delay);
}
