// @ts-check
// The value under the pointer, computed from its pixel: exact up to half a level.

import { embedded, loadPicture, loadScript, numbersAt, unpack } from "./data.js";
import { pointer } from "./state.js";
import { clamp, make, number } from "./text.js";
import { boxAt, tileBox, tileOf } from "./tiles.js";

/** @import { Numbers, Picture, Position } from "./page.d.ts" */
/** @import { Pane } from "./pane.js" */

const CACHED_BITMAPS = 4;
/** @type {Map<string, ImageBitmap | HTMLImageElement | null>} */
const bitmaps = new Map();  // of pictures whose pixels can be read, by their addresses; null while one is loading

// A page that is opened from a file may not read the pixels of a picture beside it: `pixels.js` repeats them.
/** @type {(picture: Picture) => Promise<ImageBitmap | HTMLImageElement>} */
async function readableBitmap({ src, href, pixels }) {
  if (embedded.has(src) || location.protocol !== "file:") return loadPicture(src);
  const files = await loadScript(pixels, { charset: "x-user-defined" });
  return createImageBitmap(new Blob([Uint8Array.from(files[href], (character) => character.charCodeAt(0))]));
}

// Null if it is not loaded yet; then `ready` is called when it is.
/** @type {(picture: Picture, ready: () => void) => ImageBitmap | HTMLImageElement | null} */
function bitmapOf(picture, ready) {
  const { src } = picture;
  const bitmap = bitmaps.get(src);
  bitmaps.delete(src);
  bitmaps.set(src, bitmap ?? null);
  if (bitmap !== undefined) return bitmap;
  if (bitmaps.size > CACHED_BITMAPS) bitmaps.delete(bitmaps.keys().next().value);
  readableBitmap(picture).then((loaded) => {
    if (bitmaps.has(src)) bitmaps.set(src, loaded);
    ready();
  }, () => {});  // values are not shown
  return null;
}

const probe = Object.assign(make("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });

// The first and the last level that may have the colour of a pixel.
/** @type {(picture: Picture, bitmap: ImageBitmap | HTMLImageElement, x: number, y: number) => number[] | null} */
function levelsAt({ levels }, bitmap, x, y) {
  probe.drawImage(bitmap, x, y, 1, 1, 0, 0, 1, 1);
  const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
  if (!levels.palette) return [red, red];
  levels.colours ??= atob(levels.palette);
  const colour = String.fromCharCode(red, green, blue);
  const same = Array.from({ length: 256 }, (_, level) => level).filter((level) => levels.colours.slice(3 * level, 3 * level + 3) === colour);
  return same.length ? [same[0], same.at(-1)] : null;  // a checkerboard
}

// The value at a position in a tile as text; empty if pixels have no values. The position is relative to its width and height.
/** @type {(picture: Picture, tile: number, across: number, down: number, ready?: () => void) => string} */
export function valueAt(picture, tile, across, down, ready = () => {}) {
  if (tile < 0) return "";
  const numbers = picture.statistics ? numbersAt(picture.statistics, picture.tiles.count, tile) : null;
  if (numbers?.minimum === numbers?.maximum && numbers?.nonfinite === 0) return number(numbers.minimum);
  const bitmap = picture.levels ? bitmapOf(picture, ready) : null;
  if (!bitmap) return "";
  const { x, y, width, height } = boxAt(picture, tile);
  /** @type {(share: number, size: number) => number} */
  const inside = (share, size) => clamp(Math.floor(share * size), 0, size - 1);
  const found = levelsAt(picture, bitmap, x + inside(across, width), y + inside(down, height));
  if (!found) return "not finite";
  const ends = unpack(picture.levels, picture.tiles.count);
  const [low, high] = [ends(0, tile), ends(1, tile)];
  return valueWords({ low, high, first: found[0], last: found[1], numbers });
}

/** @type {(shown: { low: number, high: number, first: number, last: number, numbers: Numbers | null }) => string} */
function valueWords({ low, high, first, last, numbers }) {
  const step = (high - low) / 255;
  if (!Number.isFinite(step)) return numbers?.nonfinite === 1 ? "not finite" : "";
  const value = low + ((first + last) / 2) * step;
  const half = ((last - first + 1) / 2) * step;
  const decimals = half > 0 ? clamp(Math.ceil(-Math.log10(half)), 0, 100) : 0;
  const rounded = decimals > 9 || Math.abs(value) >= 1e9 ? value.toPrecision(4) : value.toFixed(decimals);
  const about = `\u2248 ${rounded.replace("-", "\u2212")}`;
  if (first === 0 && numbers?.minimum < low - half) return `at most ${number(low)}`;
  if (last === 255 && numbers?.maximum > high + half) return `at least ${number(high)}`;
  const nonfinite = numbers?.nonfinite > 0 && (first === 0 || last === 255);  // a checkerboard is black and white
  return nonfinite ? `${about}, or not finite` : about;
}

/** @type {(pane: Pane, event: Position, ready: () => void) => string} */
export function valueUnder(pane, event, ready) {
  const { picture } = pane;
  const tile = tileOf(picture, pointer.channel);
  const { x, y, width, height } = tileBox(picture, tile);
  const pixel = pane.pixelUnder(event);
  return valueAt(picture, tile, (pixel.x - x) / width, (pixel.y - y) / height, ready);
}

/** @type {(value: string) => HTMLElement | ""} */
export const valueNote = (value) => (value ? make("p", "value", `Value ${value}`) : "");
