// @ts-check
// Pointing at a channel, and pinning it enlarged beside the input.

import { writeAddress } from "./address.js";
import { fit, place } from "./camera.js";
import { channelTable } from "./channel_table.js";
import { inputOf, pictureAddress } from "./data.js";
import { report } from "./registry.js";
import { besides, comparing, panes, pointer, state } from "./state.js";
import { around, clamp, count, find, LETTERS, make, narrow, say, visible } from "./text.js";
import {
  channelOf, channelOverall, channelWord, deadNote, positionOf, sameChannels, spokenNumbers, statistics,
  tileBox, tileNumbers, tileOf,
} from "./tiles.js";
import { valueUnder } from "./values.js";

/** @import { Numbers, Picture, Position, Unit } from "./page.d.ts" */
/** @import { Pane } from "./pane.js" */

const DOUBLE_CLICK = 220;  // milliseconds within which two clicks are a double click

// A pane, and the other panes that show the same channels.
/** @type {(pane: Pane | null | undefined) => Pane[]} */
const panesLike = (pane) => panes.filter((each) => each === pane || (each.picture && pane?.picture && sameChannels(each.picture, pane.picture)));
// The pinned channel is one of the first picture with channels.
/** @type {() => Pane | undefined} */
const tiledPane = () => panes.find(({ picture }) => picture?.tiles);

export function pointAgain() {
  if (pointer.pane) point(pointer.pane, pointer.event);
}

/** @type {(pane: Pane | null, event?: Position | null) => void} */
export function point(pane, event = null) {
  const channel = pane ? pane.channelUnder(event) : null;
  Object.assign(pointer, { pane, event, channel });
  const pointed = panesLike(pane);
  const over = channel === null ? null : pane;
  const value = over ? valueUnder(pane, event, pointAgain) : "";
  const more = report.pointed.map((listener) => listener(over, event)).filter(Boolean);
  for (const each of panes) {
    if (!over || !pointed.includes(each)) each.tip.hidden = each.pointed.hidden = true;
    else each.showTip(channel, each === pane ? { value, notes: more.map(({ note }) => note) } : {});
    each.viewport.classList.toggle("over", each === over);
  }
  if (over) say([spokenNumbers(pane.picture, channel), value && `value ${value}`, ...more.map((each) => each.words)].filter(Boolean).join(", "), 150);
  pane?.picture?.behaviour?.point(pane, event);
}

// State of a click that may become a double click: the channel that was pinned before, and the timer of its action.
/** @type {{ before: number | null, waiting: number }} */
const clicked = { before: null, waiting: 0 };

// Opening the panel shrinks the picture, so it waits until a double click can be ruled out.
/** @type {(pane: Pane, event: MouseEvent) => void} */
export function click(pane, event) {
  if (event.detail === 1) clicked.before = state.channel;
  if (event.detail > 1) return;
  const act = pane.picture?.behaviour ? pane.picture.behaviour.click(pane, event) : pinUnder(pane, event);
  if (!act) return;
  clearTimeout(clicked.waiting);
  clicked.waiting = setTimeout(act, DOUBLE_CLICK);
}

/** @type {(pane: Pane, event: Position) => (() => void) | null} */
function pinUnder(pane, event) {
  const channel = pane.channelUnder(event);
  if (channel === null || !panesLike(tiledPane()).includes(pane)) return null;
  state.channel = channel === state.channel ? null : channel;
  place();
  return pinned;
}

export function doubleClick() {
  clearTimeout(clicked.waiting);
  state.channel = clicked.before;
  fit();
}

function pinned() {
  point(null);  // the picture may move away from under the pointer
  showPinned();
  writeAddress();
  const pane = tiledPane();
  if (state.channel !== null && pane) say(spokenNumbers(pane.picture, state.channel));
}

/** @type {(by: number) => void} */
export function pinNeighbour(by) {
  const { picture } = tiledPane() ?? {};
  if (!picture) return;
  const last = picture.tiles.count - 1;
  const at = state.channel === null ? -1 : tileOf(picture, state.channel);
  const position = at < 0 ? (by > 0 ? 0 : last) : clamp(positionOf(picture, at) + by, 0, last);
  pinChannel(channelOf(picture, picture.order?.[position] ?? position));
}

/** @type {(channel: number) => void} */
export function pinChannel(channel) {
  state.channel = channel;
  pinned();
  const pane = tiledPane();
  const tile = pane ? tileOf(pane.picture, channel) : -1;
  if (tile >= 0) bringIntoView(pane, tile);
}

/** @type {(pane: Pane, tile: number) => void} */
function bringIntoView(pane, tile) {
  const { camera } = pane;
  const { x, y, width, height } = tileBox(pane.picture, tile);
  /** @type {(size: number, zoom: number) => number} */
  const reach = (size, zoom) => size / zoom / 2;
  /** @type {(low: number, high: number, middle: number, half: number) => number} */
  const move = (low, high, middle, half) => Math.min(0, low - (middle - half)) || Math.max(0, high - (middle + half));
  const dx = move(x, x + width, camera.x * pane.picture.width, reach(pane.viewport.clientWidth, pane.zoom));
  const dy = move(y, y + height, camera.y * pane.picture.height, reach(pane.viewport.clientHeight, pane.zoomDown));
  if (!camera.fitted && (dx || dy)) pane.shift(dx, dy);
  else place();
}

export function unpin() {
  const focused = find("#pin").contains(document.activeElement);
  state.channel = null;
  pinned();
  if (focused) panes[0].viewport.focus();  // its button is gone
}

export function showPinned() {
  const panel = find("#pin");
  const shown = panesLike(tiledPane()).filter(({ picture }) => state.channel !== null && tileOf(picture, state.channel) >= 0);
  panel.hidden = !shown.length;
  for (const listener of report.pinned) listener(shown[0]?.picture ?? null);
  place();
  if (!shown.length) return;
  const [{ picture }] = shown;
  find("h2", panel).textContent = `${channelWord(picture)} ${state.channel}`;
  find(".where", panel).textContent = `tile ${positionOf(picture, tileOf(picture, state.channel)) + 1} of ${picture.tiles.count}`;
  const size = boxSize(shown.length * (picture.shared ? 1 : 2));
  const whole = channelOverall(picture, state.channel);
  /** @type {[string, Numbers | null][]} */
  const columns = shown.map((pane) => [comparing() ? LETTERS[pane.side] : shown.length > 1 ? pane.picture.view : "this image", tileNumbers(pane.picture, state.channel)]);
  const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset.channel;
  find(".figures", panel).replaceChildren(...shown.flatMap((pane) => pinnedFigures(pane, size, besides() && pane !== shown[0])));
  find(".said", panel).replaceChildren(channelTable([...columns, [count(statistics.overall?.images, "image"), whole]]), deadNote(whole));
  if (focused) find(`[data-channel="${focused}"]`, panel)?.focus();
  for (const listener of report.placed) listener();
}

// The panel is beside the grid if that hardly shrinks the grid, otherwise below it.
/** @type {(amount: number) => number} */
function boxSize(amount) {
  const { clientWidth: width, clientHeight: height } = find("main");
  const beside = panes.length === 1 && width >= 1000;
  find("#work").classList.toggle("beside", beside);
  if (beside) return clamp((width - height) / amount, 232, 400);
  const table = narrow.matches ? 0 : 320;
  const most = innerHeight * (!report.crowded ? 0.3 : narrow.matches ? 0.15 : 0.22);  // there is more below
  return clamp(Math.min((width - 28 - table) / amount - 14, most), 72, 340);
}

/** @type {(pane: Pane, size: number, channelAlone: boolean) => HTMLElement[]} */
function pinnedFigures(pane, size, channelAlone) {
  const { picture, unit, image } = pane;
  const box = tileBox(picture, tileOf(picture, state.channel));
  const wanted = (size * devicePixelRatio) / Math.max(box.width, box.height);
  const scale = wanted > 1 ? Math.floor(wanted) : wanted;
  const canvas = Object.assign(make("canvas"), { width: Math.round(box.width * scale), height: Math.round(box.height * scale) });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 1;
  context.drawImage(/** @type {CanvasImageSource} */ (image), box.x, box.y, box.width, box.height, 0, 0, canvas.width, canvas.height);
  const letter = comparing() ? `${LETTERS[pane.side]}, ` : channelAlone ? `${picture.view}, ` : "";
  const width = canvas.width / devicePixelRatio;
  const height = canvas.height / devicePixelRatio;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", visible(`${channelWord(picture)} ${state.channel} of ${unit.unit}`));
  /** @type {[string, HTMLElement][]} */
  const figures = [["channel", figure(canvas, `${letter}${channelWord(picture).toLowerCase()}`, width, height)]];
  const inputPicture = inputOf(unit);
  if (inputPicture && !picture.shared && !channelAlone) figures.push(["input", inputFigure(inputPicture, unit, letter, Math.max(width, height))]);
  for (const [kind, whole] of figures) for (const listener of report.figures) listener(whole, pane, kind);
  return figures.map(([, whole]) => whole);
}

// As large as the channel, with the input's aspect ratio: a bar of a vector would make it a strip.
/** @type {(inputPicture: Picture, unit: Unit, letter: string, size: number) => HTMLElement} */
function inputFigure(inputPicture, unit, letter, size) {
  const larger = Math.max(inputPicture.width, inputPicture.height);
  const width = (size * inputPicture.width) / larger;
  const height = (size * inputPicture.height) / larger;
  const input = make("img", inputPicture.width < width ? "grown" : "");
  input.src = pictureAddress(inputPicture.src);
  input.alt = visible(`Input of ${unit.unit}`);
  return figure(input, `${letter}input`, width, height);
}

/** @type {(content: HTMLElement, caption: string, width: number, height: number) => HTMLElement} */
function figure(content, caption, width, height) {
  const whole = make("figure");
  const box = make("span", "box");
  box.dataset.caption = visible(caption);
  for (const element of [content, box]) Object.assign(element.style, { width: `${width}px`, height: `${height}px` });
  box.append(content);
  whole.append(box, make("figcaption", "", caption));
  return whole;
}

// A ring marks the same position in the channel and in the input.
/** @type {(event: PointerEvent) => void} */
export function cross(event) {
  const box = around(event, ".box");
  if (!box) return leave();
  find(".pinned").classList.add("crossed");
  const bounds = box.getBoundingClientRect();
  const [across, down] = [(event.clientX - bounds.left) / bounds.width, (event.clientY - bounds.top) / bounds.height];
  moveRing(across, down);
  reportCrossed(box, across, down);
}

export function leave() {
  find(".pinned").classList.remove("crossed");
  reportCrossed(null);
}

/** @type {(box: HTMLElement | null, across?: number, down?: number) => void} */
function reportCrossed(box, across = 0, down = 0) {
  for (const listener of report.crossed) listener(box, across, down);
}

// The position is relative to the width and height.
/** @type {(across: number, down: number) => void} */
export function moveRing(across, down) {
  find(".pinned").style.setProperty("--x", `${100 * across}%`);
  find(".pinned").style.setProperty("--y", `${100 * down}%`);
}
