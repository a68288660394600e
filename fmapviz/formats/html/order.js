// @ts-check
// The order of the channels: draws the tiles sorted by one of their numbers, the largest first.

import { chooseOrder } from "./choose.js";
import { numbersAt } from "./data.js";
import { state } from "./state.js";
import { find, make } from "./text.js";
import { boxAt, sameChannels } from "./tiles.js";

/** @import { Found, Measure, Picture } from "./page.d.ts" */

/** @type {Partial<Record<string, string>>} */
export const ORDERS = { mean: "mean", maximum: "maximum", deviation: "deviation", zeros: "share of zeros" };
const LARGEST_CANVAS = { side: 16384, area: 2 ** 25 };  // pixels; browsers show nothing of larger ones

/** @type {(picture: Picture | null | undefined) => boolean} */
const canSort = (picture) => Boolean(picture?.tiles && picture.statistics && picture.tiles.count > 1)
  && Math.max(picture.width, picture.height) <= LARGEST_CANVAS.side && picture.width * picture.height <= LARGEST_CANVAS.area;

// Two images are compared channel by channel, so both have the order of the first.
/** @type {(found: Found[]) => void} */
export function sortChannels(found) {
  if (!state.order) return;
  let first = null;
  for (const side of found) {
    if (!canSort(side.picture)) continue;
    const { tiles } = side.picture;
    const alike = first && sameChannels(first, side.picture) && first.tiles.count === tiles.count;
    const order = alike ? first.order : orderOf(side.picture);
    side.picture = { ...side.picture, order };
    side.image = drawSorted(side.picture, /** @type {CanvasImageSource} */ (side.image));
    first ??= side.picture;
  }
}

/** @type {(picture: Picture) => number[]} */
function orderOf({ statistics, tiles }) {
  const values = Array.from({ length: tiles.count }, (_, tile) => numbersAt(statistics, tiles.count, tile)[/** @type {Measure} */ (state.order)]);
  /** @type {(tile: number) => number} */
  const rank = (tile) => (Number.isNaN(values[tile]) ? -Infinity : values[tile]);
  const order = [...values.keys()];
  return order.sort((one, other) => (rank(one) === rank(other) ? one - other : rank(other) - rank(one)));
}

// A tile moves with the number above it, unless numbers may be wider than tiles.
/** @type {(picture: Picture, image: CanvasImageSource) => HTMLCanvasElement} */
function drawSorted(picture, image) {
  const { tiles, order } = picture;
  const canvas = Object.assign(make("canvas"), { width: picture.width, height: picture.height });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const above = tiles.down - tiles.height;
  /** @type {(position: number) => [number, number, number, number]} */
  const cell = (position) => {
    const { x, y } = boxAt(picture, position);
    return [x, y - above, tiles.across, tiles.down];
  };
  for (const position of order.keys()) context.fillRect(...cell(position));
  for (const [position, tile] of order.entries()) {
    const [x, y, width, height] = cell(position);
    const [left, top] = cell(tile);
    const skipped = tiles.across === tiles.width ? above : 0;
    context.drawImage(image, left, top + skipped, width, height - skipped, x, y + skipped, width, height - skipped);
  }
  return canvas;
}

export function fillOrders() {
  find("#order").append(new Option("number", ""), ...Object.entries(ORDERS).map(([order, name]) => new Option(name, order)));
}

/** @type {(picture: Picture | undefined) => void} */
export function showOrder(picture) {
  /** @type {HTMLSelectElement} */
  const select = find("#order");
  select.value = state.order ?? "";
  select.disabled = !canSort(picture);
  select.closest("label").hidden = !picture?.tiles || !picture.statistics;
}

export function nextOrder() {
  const orders = ["", ...Object.keys(ORDERS)];
  if (!/** @type {HTMLSelectElement} */ (find("#order")).disabled) chooseOrder(orders[(orders.indexOf(state.order ?? "") + 1) % orders.length]);
}
