// @ts-check
// Receptive fields: the pixels of the input that a position of a map depends on.

import { PAN } from "./camera.js";
import { inputOf } from "./data.js";
import { leave, moveRing } from "./pins.js";
import { panes, pointer, state } from "./state.js";
import { clamp, find, findAll, make, say } from "./text.js";
import { channelWord, tileBox, tileOf } from "./tiles.js";
import { valueAt } from "./values.js";

/** @import { Box, Edges, Ends, Field, Frame, Picture, Position, Report, Size, Unit } from "./page.d.ts" */
/** @import { Pane } from "./pane.js" */

/** @type {(ends: Ends) => ends is number[]} */
const isRegular = (ends) => ends.length === 3;

// First pixel, and the one after the last. Regular intervals are stored as the start of the first one, their stride and
// their length; others as lists of first and last pixels, with one entry if all are equal.
/** @type {(ends: Ends, position: number) => [number, number]} */
function intervalAt(ends, position) {
  if (isRegular(ends)) return [ends[0] + position * ends[1], ends[0] + position * ends[1] + ends[2]];
  const at = Math.min(position, ends[0].length - 1);
  return [ends[0][at], ends[1][at] + 1];
}

// Rows and columns of a map; channels are the first or the last axis of a layer's shape.
/** @type {(picture: Picture) => (number | null)[]} */
function mapSize({ layer, tiles, statistics }) {
  /** @type {(size: number[]) => boolean} */
  const fits = ([rows, columns]) => rows * columns === statistics?.values && rows * tiles.width === columns * tiles.height;
  const size = [layer.shape.slice(-2), layer.shape.slice(0, 2)].find(fits);
  return layer.sees.map((ends, axis) => size?.[axis] ?? (isRegular(ends) ? null : ends[0].length));
}

// The field of a position, relative to a tile's width and height; null if it is unknown.
/** @type {(pane: Pane, across: number, down: number) => Field | null} */
function fieldAt({ picture, unit }, across, down) {
  const size = picture?.layer?.sees && picture.tiles ? mapSize(picture) : [];
  if (!size.length || !size.every(Boolean)) return null;
  const [row, column] = [down, across].map((share, axis) => clamp(Math.floor(share * size[axis]), 0, size[axis] - 1));
  const [[top, bottom], [left, right]] = [row, column].map((position, axis) => intervalAt(picture.layer.sees[axis], position));
  const field = { href: unit.href, row, column, size, box: [left, top, right, bottom] };
  return { ...field, words: fieldWords(field.box, inputOf(unit)) };
}

/** @type {(pane: Pane, event: Position) => Field | null} */
function fieldUnder(pane, event) {
  const { picture } = pane;
  const { x, y, width, height } = tileBox(picture, tileOf(picture, pointer.channel));
  const pixel = pane.pixelUnder(event);
  return fieldAt(pane, (pixel.x - x) / width, (pixel.y - y) / height);
}

// The part of a box, left, top, right and bottom, that is in the picture.
/** @type {(box: Edges, within: Size) => Box | null} */
export function clip([left, top, right, bottom], { width, height }) {
  const [x, y] = [Math.max(left, 0), Math.max(top, 0)];
  const box = { x, y, width: Math.min(right, width) - x, height: Math.min(bottom, height) - y };
  return box.width > 0 && box.height > 0 ? box : null;
}

/** @type {(height: number, width: number) => string} */
const area = (height, width) => `${height} \u00d7 ${width}`;

/** @type {(box: Edges, inputPicture: Picture | undefined) => string} */
function fieldWords([left, top, right, bottom], inputPicture) {
  const whole = `receptive field ${area(bottom - top, right - left)} pixels`;
  const inside = inputPicture && clip([left, top, right, bottom], inputPicture);
  if (!inputPicture || (inside?.width === right - left && inside.height === bottom - top)) return whole;
  if (!inside) return "receptive field: padding only";
  if (inside.width === inputPicture.width && inside.height === inputPicture.height) return "receptive field: the whole picture";
  return `${whole}, ${area(inside.height, inside.width)} in the picture`;
}

// The size of a layer's receptive fields, if it is the same at all positions.
/** @type {(picture: Picture, inputPicture: Picture | undefined) => string} */
function receptiveField(picture, inputPicture) {
  const { layer, behaviour } = picture;
  if (!layer?.sees || behaviour) return "";
  const lengths = layer.sees.map((ends) => (isRegular(ends) ? [ends[2]] : [...new Set(ends[0].map((first, at) => ends[1][at] - first + 1))]));
  if (!lengths.every((some) => some.length === 1)) return "";
  if (inputPicture && coversAll(picture, inputPicture)) return "the whole picture";
  const size = `${area(lengths[0][0], lengths[1][0])} pixels`;
  const steps = [...new Set(layer.sees.map((ends) => (isRegular(ends) ? ends[1] : 0)))];
  return steps.every((step) => step > 0) ? `${size}, stride ${steps.join(" \u00d7 ")}` : size;
}

// True if every position depends on all pixels, that is, if the first and the last one do.
/** @type {(picture: Picture, within: Size) => boolean} */
function coversAll(picture, { width, height }) {
  const counts = picture.tiles ? mapSize(picture) : [];
  return [height, width].every((side, axis) => {
    const ends = picture.layer.sees[axis];
    const last = (counts[axis] ?? (isRegular(ends) ? 1 : ends[0].length)) - 1;
    return [0, last].every((position) => {
      const [first, after] = intervalAt(ends, position);
      return first <= 0 && after >= side;
    });
  });
}

/** @type {Field | null} */
let pointedField = null;

/** @type {(field: Field | null) => void} */
function showField(field) {
  if (!field && !pointedField) return;
  pointedField = field;
  drawFields();
}

// The field of the position pointed at.
/** @type {(unit: Unit) => Frame | null} */
function pointedFrame(unit) {
  if (!pointedField || pointedField.href !== unit.href) return null;
  const [words] = pointedField.words.split(",");
  return { box: clip(pointedField.box, inputOf(unit)), caption: () => words };
}

// Boxes in the input of an image, in pixels, with their captions; `name` is the class of the outline. The first one covers
// the others.
/** @type {{ name: string, of: (unit: Unit) => Frame | null }[]} */
export const frames = [{ name: "seen", of: pointedFrame }];

/** @type {(unit: Unit | null | undefined) => ({ name: string } & Partial<Frame>)[]} */
const framesOf = (unit) => frames.map(({ name, of }) => ({ name, ...(inputOf(unit) ? of(unit) : null) }));

export function drawFields() {
  for (const pane of panes) {
    const shown = framesOf(pane.picture?.view === "input" ? pane.unit : null);
    for (const { name, box } of shown) pane.frame(find(`.outline.${name}`, pane.viewport), box);
  }
  for (const box of findAll("[data-input]", find("#pin"))) {
    const { unit } = panes[Number(box.dataset.input)] ?? {};
    const shown = framesOf(unit);
    for (const each of shown) placeFrame(find(`.outline.${each.name}`, box), each.box, inputOf(unit));
    caption(box, shown.find((each) => each.caption)?.caption(box.dataset.caption));
  }
  for (const box of findAll("[data-channel]", find("#pin"))) {
    const pane = panes[Number(box.dataset.channel)];
    const here = pointedField && pointedField.href === pane?.unit?.href;
    caption(box, here && [`row ${pointedField.row}, column ${pointedField.column}`, pointedValue(pane)].filter(Boolean).join(": "));
  }
}

/** @type {(pane: Pane) => string} */
function pointedValue({ picture }) {
  const { row, column, size: [rows, columns] } = pointedField;
  return valueAt(picture, tileOf(picture, state.channel), (column + 0.5) / columns, (row + 0.5) / rows, drawFields);
}

/** @type {(frame: HTMLElement, box: Box | null | undefined, within: Size | undefined) => void} */
function placeFrame(frame, box, within) {
  frame.hidden = !box;
  if (!box) return;
  const { width, height } = within;
  /** @type {(share: number) => string} */
  const percent = (share) => `${100 * share}%`;
  Object.assign(frame.style, { left: percent(box.x / width), top: percent(box.y / height), width: percent(box.width / width), height: percent(box.height / height) });
}

/** @type {(box: HTMLElement, text: string | null | undefined) => void} */
function caption(box, text) {
  find("figcaption", box.parentElement).textContent = text || box.dataset.caption;
}

/** @type {(field: Field) => HTMLElement} */
const fieldNote = (field) => make("p", "sees", `Row ${field.row}, column ${field.column}: ${field.words}`);

/** @type {(figure: HTMLElement, pane: Pane) => void} */
function showFields(figure, pane) {
  const box = find(".box", figure);
  box.dataset.input = String(pane.side);
  box.append(...frames.toReversed().map(({ name }) => Object.assign(make("div", `outline ${name}`), { hidden: true })));
}

// With the focus on the picture of a channel, arrow keys point at its positions.
/** @type {(figure: HTMLElement, pane: Pane) => void} */
function followPositions(figure, pane) {
  const box = find(".box", figure);
  box.dataset.channel = String(pane.side);
  const middle = fieldAt(pane, 0.5, 0.5);
  if (!middle) return;
  Object.assign(box, { tabIndex: 0, role: "application", ariaLabel: `Positions of the ${channelWord(pane.picture).toLowerCase()}: arrow keys move` });
  let { row, column } = middle;
  const go = () => {
    const [rows, columns] = middle.size;
    const [across, down] = [(column + 0.5) / columns, (row + 0.5) / rows];
    find(".pinned").classList.add("crossed");
    moveRing(across, down);
    showPosition(box, across, down);
    const value = pointedValue(pane);
    say(`row ${row}, column ${column}: ${value && `value ${value}, `}${pointedField.words}`);
  };
  box.addEventListener("focus", () => box.matches(":focus-visible") && go());
  box.addEventListener("blur", leave);
  box.addEventListener("keydown", (event) => {
    if (!(event.key in PAN) || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const [right, below] = PAN[event.key];
    row = clamp(row + below, 0, middle.size[0] - 1);
    column = clamp(column + right, 0, middle.size[1] - 1);
    go();
  });
}

/** @type {(box: HTMLElement | null, across: number, down: number) => void} */
function showPosition(box, across, down) {
  const pane = box?.dataset.channel ? panes[Number(box.dataset.channel)] : null;
  showField(pane ? fieldAt(pane, across, down) : null);
}

/** @type {(picture: Picture, unit: Unit) => void} */
function addFact(picture, unit) {
  const field = receptiveField(picture, inputOf(unit));
  if (field) picture.facts.push(["Receptive field", field]);
}

/** @type {(pane: Pane | null, event: Position | null) => { note: HTMLElement, words: string } | null} */
function pointAt(pane, event) {
  const field = pane && fieldUnder(pane, event);
  showField(field);
  return field && { note: fieldNote(field), words: field.words };
}

/** @param {Report} report */
export function register(report) {
  report.loaded.push(addFact);
  report.pointed.push(pointAt);
  report.placed.push(drawFields);
  report.figures.push((figure, pane, kind) => (kind === "channel" ? followPositions(figure, pane) : showFields(figure, pane)));
  report.crossed.push(showPosition);
}
