// @ts-check
// Histograms as SVG, which is sharp at any scale.

import { count, number, visible } from "./text.js";

/** @import { Format, Picture } from "./page.d.ts" */

export const CHART = { width: 640, height: 320 };
const PLOT = { left: 64, top: 24, width: 552, height: 232 };
const TALLER = 4;  // a bar that is more than this many times as high as the second highest is cut, so that others stay visible

/** @type {(picture: Picture) => SVGElement} */
export function drawHistogram({ histogram, title, name }) {
  const { counts, low, high, nonfinite } = histogram;
  const total = counts.reduce((sum, amount) => sum + amount, 0);
  const chart = draw("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, class: "chart", role: "img" });
  chart.setAttribute("aria-label", visible(`Histogram of ${title || name}`));
  chart.append(draw("rect", { class: "paper", width: CHART.width, height: CHART.height }));
  const [second, most] = [0, ...counts].sort((one, other) => one - other).slice(-2);
  const full = most > TALLER * second && second > 0 ? Math.ceil(1.25 * second) : most;
  const remarks = [];
  if (total) {
    chart.append(...drawShares((100 * full) / total), ...drawBars(counts, full), ...drawValues(low, high));
    if (full < most) remarks.push(`The highest bar is cut: it holds ${Math.floor((1000 * most) / total) / 10} % of the values.`);
  } else chart.append(write("no finite value", PLOT.left + PLOT.width / 2, PLOT.top + PLOT.height / 2));
  if (nonfinite) remarks.push(`Not shown: ${count(nonfinite, "value")} that ${nonfinite === 1 ? "is" : "are"} NaN or infinite.`);
  const bottom = PLOT.top + PLOT.height;
  chart.append(draw("path", { class: "axis", d: `M${PLOT.left} ${bottom}h${PLOT.width}` }));
  remarks.forEach((remark, line) => chart.append(write(remark, PLOT.left, bottom + 40 + 17 * line, "start")));
  return chart;
}

/** @type {(tag: string, attributes: Record<string, string | number>) => SVGElement} */
export function draw(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/** @type {(text: string, x: number, y: number, anchor?: string) => SVGElement} */
function write(text, x, y, anchor = "middle") {
  const element = draw("text", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

/** @type {(counts: number[], full: number) => SVGElement[]} */
function drawBars(counts, full) {
  const width = PLOT.width / counts.length;
  return counts.flatMap((amount, bin) => {
    if (!amount) return [];
    const height = Math.max(1, Math.min(1, amount / full) * PLOT.height);
    const [x, y] = [PLOT.left + bin * width, PLOT.top + PLOT.height - height];
    const bar = draw("rect", { class: "bin", x: x + 0.5, y, width: width - 1, height });
    // A gap marks a bar that is cut.
    return amount > full ? [bar, draw("path", { class: "gap", d: `M${x - 1} ${y + 14}l${width + 2} -5` })] : [bar];
  });
}

/** @type {(percent: number) => SVGElement[]} */
function drawShares(percent) {
  return ticks(0, percent, 5).flatMap(([value, text]) => {
    const y = PLOT.top + PLOT.height * (1 - value / percent);
    return [draw("path", { class: "grid", d: `M${PLOT.left} ${y}h${PLOT.width}` }), write(`${text} %`, PLOT.left - 8, y + 4, "end")];
  });
}

/** @type {(low: number, high: number) => SVGElement[]} */
function drawValues(low, high) {
  const bottom = PLOT.top + PLOT.height;
  if (low === high) return [write(`all values are ${number(low)}`, PLOT.left + PLOT.width / 2, bottom + 20)];
  const shown = ticks(low, high, 7).flatMap(([value, text]) => {
    const x = PLOT.left + (PLOT.width * (value - low)) / (high - low);
    const zero = value === 0 && low < 0 && high > 0 ? [draw("path", { class: "zero", d: `M${x} ${PLOT.top}v${PLOT.height}` })] : [];
    return [...zero, draw("path", { class: "axis", d: `M${x} ${bottom}v5` }), write(text, x, bottom + 20)];
  });
  return shown;
}

// Multiples of 1, 2 or 5 times a power of ten within a range, with at most `most` steps, and their labels.
/** @type {(low: number, high: number, most: number) => [number, string][]} */
function ticks(low, high, most) {
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size * most >= high - low);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const largest = Math.max(Math.abs(low), Math.abs(high));
  /** @type {Format} */
  const format = largest >= 1e6 || decimals > 6 ? (value) => value.toPrecision(4) : (value) => value.toFixed(decimals);
  return Array.from({ length: last - first + 1 }, (_, index) => [(first + index) * step, format((first + index) * step)]);
}
