// @ts-check
// Top images: the strip of the pinned channel, and the pages of all channels.

import { chooseImage } from "../../formats/html/choose.js";
import { address, inputOf, loadPicture, loadScript, prepare } from "../../formats/html/data.js";
import { clip, drawFields, frames } from "../../formats/html/field.js";
import { comparing, isShown, panes, pictures, state } from "../../formats/html/state.js";
import { clamp, factOf, find, findAll, make, nameAt, nameParts, number, run, say, visible } from "../../formats/html/text.js";
import { boxAt, isLayerInput, tileAt } from "../../formats/html/tiles.js";

/** @import { Behaviour, Box, Entry, Frame, Item, Layer, LazyView, Picture, Position, Ranked, Report, Step, Unit } from "../../formats/html/page.d.ts" */
/** @import { Pane } from "../../formats/html/pane.js" */
/** @typedef {{ page: Picture, row: number, remark: string, entries: Ranked[] }} Strip */

// Pages of strips, 32 channels each, in a unit of the run.
/** @type {LazyView} */
const topView = { view: "top", label: "top images", load: loadTop, unit: null, error: null };
/** @type {Behaviour} */
const asPages = { note: channelsOn, holds: isOn, outline: rowBox, middle: middleOf, point: pointCell, click: clickCell };

/** @type {Promise<void> | null} */
let topLoading = null;

async function loadTop() {
  if (!topView.unit) topLoading ??= readTop().finally(() => { topLoading = null; });
  await topLoading;
}

async function readTop() {
  topView.error = null;
  try {
    topView.unit = prepareTop(await loadScript(address(`${run.top}report.js`)));
  } catch (error) {
    topView.error = error.message;
  }
}

/** @type {(unit: Unit) => Unit} */
function prepareTop(unit) {
  const pages = Map.groupBy(unit.pictures, ({ layer }) => layer.name);
  for (const [, of] of pages) if (of.length > 1) of.forEach((picture, page) => { picture.name += `, page ${page + 1}`; });
  // Their tiles are images, not channels.
  for (const picture of unit.pictures) Object.assign(picture, { shared: "All images of the run", behaviour: asPages, cells: picture.tiles, tiles: null, statistics: null });
  return prepare(unit, run.top);
}

const CACHED_PAGES = 2;  // a decoded page has up to 30 MB

/** @type {Map<string, Promise<HTMLImageElement>>} */
const pages = new Map();  // by address

/** @type {(page: Picture) => Promise<HTMLImageElement>} */
function loadPage({ src }) {
  const loading = pages.get(src) ?? loadPicture(src);
  pages.delete(src);
  pages.set(src, loading);
  loading.catch(() => pages.delete(src));
  if (pages.size > CACHED_PAGES) pages.delete(pages.keys().next().value);
  return loading;
}

/** @type {(entry: Entry) => Item | undefined} */
const unitOf = ({ href }) => run.units.find((item) => (item.steps ?? [item]).some((each) => each.href === href));
/** @type {(item: Item, entry: Entry) => Step | null} */
const stepOf = (item, { href }) => item.steps?.find((step) => step.href === href) ?? null;

// Uses the image's name in the report, if the report has it.
/** @type {(entry: Entry, at: number) => Ranked} */
function withRank(entry, at) {
  const item = unitOf(entry);
  return { ...entry, rank: at + 1, name: item ? nameAt(item, stepOf(item, entry)) : entry.name };
}

/** @type {(layer: Layer, channel: number | null) => Strip | null} */
function stripOf({ name }, channel) {
  const page = topView.unit?.pictures.find(({ layer, strips }) => layer.name === name && strips.channels.includes(channel));
  if (!page) return null;
  const row = page.strips.channels.indexOf(channel);
  return { page, row, remark: page.strips.remarks?.[row] ?? "", entries: page.strips.images[row].map(withRank) };
}

/** @type {() => Strip | null} */
function pinnedStrip() {
  const { picture } = panes.find((pane) => pane.picture?.layer) ?? {};
  if (!picture || state.channel === null || isLayerInput(picture) || !(picture.tiles || picture.cells)) return null;
  return stripOf(picture.layer, state.channel);
}

/** @type {string | null} */
let stripShown = null;  // the layer and channel of the strip

/** @type {(picture: Picture | null) => Promise<void>} */
async function showStrip(picture) {
  const strip = find(".strip");
  const wanted = picture?.layer && !isLayerInput(picture) ? JSON.stringify([picture.layer.name, state.channel]) : null;
  if (wanted === stripShown) return markStrip();
  stripShown = wanted;
  if (!wanted) {
    strip.hidden = true;
    return;
  }
  strip.classList.add("loading");
  try {
    await loadTop();
    const shown = stripOf(picture.layer, state.channel);
    const image = shown?.entries.length ? await loadPage(shown.page) : null;
    if (stripShown === wanted) drawStrip(shown, image, topView.error);
  } catch (error) {
    if (stripShown === wanted) drawStrip(null, null, error.message);
  }
}

// A layer that was not ranked has no strip.
/** @type {(shown: Strip | null, image: HTMLImageElement | null, error: string | null) => void} */
function drawStrip(shown, image, error) {
  const strip = find(".strip");
  strip.classList.remove("loading");
  strip.hidden = !shown && !error;
  if (error) stripShown = null;  // retried when a channel is pinned again
  const list = find("ol", strip);
  list.hidden = !shown?.entries.length;
  list.replaceChildren(...(shown?.entries ?? []).map((entry) => drawEntry(entry, shown, image)));
  list.scrollLeft = 0;
  strip.dataset.about = visible(error ?? (shown ? aboutStrip(shown) : ""));
  describeEntry(null);
  markStrip();
  drawFields();
}

/** @type {(strip: Strip) => string} */
function aboutStrip({ page, remark, entries }) {
  if (!entries.length) return remark ? `None: ${remark}` : "None: the channel is constant, or has no finite value";
  return [factOf(page, "Shows").split(" of each channel")[0], remark].filter(Boolean).join(", ");
}

/** @type {(entry: Ranked) => string} */
function entryWords(entry) {
  const absent = unitOf(entry) ? "" : "not in this report";
  return [`${entry.rank}`, entry.name, Number(entry.value.toPrecision(9)), entry.note, absent].filter((part) => part || part === 0).join(" \u00b7 ");
}

/** @type {(entry: Ranked, strip: Strip, image: HTMLImageElement) => HTMLElement} */
function drawEntry(entry, { page, row }, image) {
  const button = Object.assign(make("button"), { type: "button", ariaLabel: visible(`Top image ${entryWords(entry)}`) });
  button.dataset.href = entry.href;
  button.setAttribute("aria-disabled", String(!unitOf(entry)));
  const line = make("span", "line");
  line.append(make("span", "rank", entry.rank), make("span", "value", number(entry.value)));
  const name = make("span", "name");
  name.append(make("span", "", nameParts(entry.name)[1]));
  button.append(cutTile(image, boxAt({ tiles: page.cells }, row * page.cells.columns + entry.rank - 1)), line, name);
  if (entry.note) line.append(make("span", "noted", "!"));
  button.addEventListener("click", () => openImage(entry, page.layer, page.strips.channels[row]));
  for (const type of ["pointerenter", "focus"]) button.addEventListener(type, () => describeEntry(entry));
  for (const type of ["pointerleave", "blur"]) button.addEventListener(type, () => describeEntry(null));
  const item = make("li");
  item.append(button);
  return item;
}

/** @type {(image: HTMLImageElement, box: Box) => HTMLElement} */
function cutTile(image, { x, y, width, height }) {
  const canvas = Object.assign(make("canvas"), { width, height });
  canvas.getContext("2d").drawImage(image, x, y, width, height, 0, 0, width, height);
  return canvas;
}

// Describes the image under the pointer or with the focus in full, otherwise the strip.
/** @type {(entry: Ranked | null) => void} */
function describeEntry(entry) {
  const strip = find(".strip");
  find("header p", strip).textContent = entry ? visible(entryWords(entry)) : strip.dataset.about;
}

function markStrip() {
  const shown = panes.map(({ unit }) => unit?.href);
  for (const button of findAll("button", find(".strip"))) {
    if (shown.includes(button.dataset.href)) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

// Opens an image at the same layer. A picture that belongs to no image is replaced by that of the layer, if there is one.
/** @type {(entry: Ranked, layer: Layer, channel: number) => void} */
function openImage(entry, layer, channel) {
  const item = unitOf(entry);
  if (!item) return say(`${entry.name} is not in this report.`);
  state.channel = channel;
  state.steps[state.side] = stepOf(item, entry)?.step ?? state.steps[state.side];
  if (pictures.listed.find(isShown)?.shared) {
    const ofLayer = pictures.listed.find((each) => each.layer?.name === layer.name && each.tiles && !each.shared && !isLayerInput(each));
    if (ofLayer) Object.assign(state, { view: ofLayer.view, name: ofLayer.name });
    else if (!comparing()) state.beside = "input";
  }
  chooseImage(item, false);
}

/** @type {(picture: Picture) => string} */
function channelsOn({ strips }) {
  return `channels ${strips.channels[0]} to ${strips.channels.at(-1)}`;
}

/** @type {(picture: Picture, channel: number | null) => boolean} */
function isOn({ strips }, channel) {
  return strips.channels.includes(channel);
}

/** @type {(picture: Picture, channel: number | null) => Box | null} */
function rowBox({ cells, strips }, channel) {
  const row = strips.channels.indexOf(channel);
  if (row < 0) return null;
  const { x, y, height } = boxAt({ tiles: cells }, row * cells.columns);
  return { x, y, width: (cells.columns - 1) * cells.across + cells.width, height };
}

// A page is as wide as its pane, and shows its top or the row of the pinned channel.
/** @type {(pane: Pane, margin: number) => number} */
function middleOf(pane, margin) {
  const zoom = (pane.scale() * pane.stretch()) / devicePixelRatio;
  const { height } = pane.picture;
  const half = pane.viewport.clientHeight / zoom / 2 - margin / zoom;
  if (2 * half >= height) return 0.5;
  const row = rowBox(pane.picture, state.channel);
  return clamp(row ? row.y + row.height / 2 : 0, half, height - half) / height;
}

/** @type {(pane: Pane, event: Position) => { entry: Ranked, channel: number, layer: Layer, box: Box } | null} */
function cellUnder(pane, event) {
  const { cells: tiles, strips, layer } = pane.picture;
  const { x, y } = pane.pixelUnder(event);
  const position = tileAt({ tiles }, x, y);
  const row = Math.floor(position / tiles.columns);
  const rank = position % tiles.columns;
  const entry = position < 0 ? null : strips.images[row][rank];
  if (!entry) return null;
  return { entry: withRank(entry, rank), channel: strips.channels[row], layer, box: boxAt({ tiles }, position) };
}

/** @type {(pane: Pane, event: Position) => void} */
function pointCell(pane, event) {
  const cell = cellUnder(pane, event);
  pane.viewport.classList.toggle("over", Boolean(cell));
  if (!cell) return;
  const { entry, channel, box } = cell;
  pane.frame(pane.pointed, box);
  pane.tip.hidden = false;
  const lines = [entry.name, `value ${Number(entry.value.toPrecision(9))}`, entry.note].filter(Boolean);
  pane.tip.replaceChildren(make("b", "", `Channel ${channel}, image ${entry.rank}`), ...lines.map((line) => make("p", "", line)));
  pane.placeTip();
  say(`channel ${channel}, image ${entryWords(entry)}`, 150);
}

/** @type {(pane: Pane, event: Position) => (() => void) | null} */
function clickCell(pane, event) {
  const cell = cellUnder(pane, event);
  return cell && (() => openImage(cell.entry, cell.layer, cell.channel));
}

// The box of the image's receptive field in the strip of the pinned channel.
/** @type {(unit: Unit) => Frame | null} */
function bestFrame(unit) {
  const best = pinnedStrip()?.entries.find(({ href, box }) => box && href === unit.href);
  const box = best ? clip(best.box, inputOf(unit)) : null;
  return box && { box, caption: (name) => `${name}, top image ${best.rank}` };
}

/** @param {Report} report */
export function register(report) {
  if (!run.top) return;
  const strip = Object.assign(make("section", "strip"), { hidden: true, innerHTML: '<header><h3 id="strip-title">Top images</h3><p></p></header><ol></ol>' });
  strip.setAttribute("aria-labelledby", "strip-title");
  find(".pinned .said").before(strip);
  report.views.push(topView);
  report.pinned.push(showStrip);
  report.crowded = true;
  frames.push({ name: "best", of: bestFrame });
}
