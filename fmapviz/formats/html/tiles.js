// @ts-check
// Tiles: positions of the channels in a picture, and the numbers of a channel.

import { layerAmong, numbersAt } from "./data.js";
import { make, number, share } from "./text.js";

/** @import { Box, Measured, Numbers, Overall, Picture, Tiles } from "./page.d.ts" */

/** @type {(picture: Picture, tile: number) => number} */
export const channelOf = (picture, tile) => picture.channels?.[tile] ?? tile;

/** @type {(picture: Picture | null | undefined, channel: number) => number} */
export function tileOf(picture, channel) {
  if (!picture?.tiles) return -1;
  if (picture.channels) return picture.channels.indexOf(channel);
  return channel < picture.tiles.count ? channel : -1;
}

// `order` holds the tiles as they are sorted, if they are.
/** @type {(picture: Picture, tile: number) => number} */
export const positionOf = (picture, tile) => picture.order?.indexOf(tile) ?? tile;

/** @type {(picture: Picture, tile: number) => Box} */
export function tileBox(picture, tile) {
  return boxAt(picture, positionOf(picture, tile));
}

/** @type {(picture: { tiles: Tiles | null }, position: number) => Box} */
export function boxAt({ tiles }, position) {
  const row = Math.floor(position / tiles.columns);
  return { x: tiles.left + (position % tiles.columns) * tiles.across, y: tiles.top + row * tiles.down, width: tiles.width, height: tiles.height };
}

/** @type {(picture: { tiles: Tiles | null, order?: number[] }, x: number, y: number) => number} */
export function tileAt(picture, x, y) {
  const { tiles } = picture;
  if (!tiles) return -1;
  const column = Math.floor((x - tiles.left) / tiles.across);
  const row = Math.floor((y - tiles.top) / tiles.down);
  const within = x - tiles.left - column * tiles.across < tiles.width && y - tiles.top - row * tiles.down < tiles.height;
  const position = row * tiles.columns + column;
  const found = within && column >= 0 && column < tiles.columns && row >= 0 && position < tiles.count;
  return found ? picture.order?.[position] ?? position : -1;
}

// Statistics over the run, once they are loaded.
/** @type {{ overall: Overall | null }} */
export const statistics = { overall: null };

/** @type {(picture: Picture) => Measured | null} */
export const layerOverall = (picture) => (statistics.overall ? layerAmong(statistics.overall.layers, picture) : null);

/** @type {(picture: Picture, channel: number) => Numbers | null} */
export function tileNumbers(picture, channel) {
  const tile = tileOf(picture, channel);
  return tile >= 0 && picture.statistics ? numbersAt(picture.statistics, picture.tiles.count, tile) : null;
}

/** @type {(picture: Picture, channel: number) => (Numbers & { dead: boolean }) | null} */
export function channelOverall(picture, channel) {
  const layer = layerOverall(picture);
  return layer && channel < layer.channels ? { ...numbersAt(layer, layer.channels, channel), dead: layer.dead.includes(channel) } : null;
}

/** @type {() => string} */
export function inEachImage() {
  const { images } = statistics.overall;
  return ["", "in the only image", "in both images"][images] ?? `in all ${images} images`;
}

/** @type {(numbers: { dead: boolean } | null) => HTMLElement | ""} */
export function deadNote(numbers) {
  return numbers?.dead ? make("p", "dead", `Dead ${inEachImage()}`) : "";
}

// Channels with the same value everywhere in this image. A map of a single value does not show that a channel is dead.
/** @type {(picture: Picture) => number[]} */
export function deadHere(picture) {
  const { statistics: own, tiles } = picture;
  if (!own || own.values < 2) return [];
  const tilesShown = [...Array(tiles.count).keys()];
  return tilesShown.filter((tile) => {
    const { minimum, maximum, nonfinite } = numbersAt(own, tiles.count, tile);
    return minimum === maximum && nonfinite === 0;
  }).map((tile) => channelOf(picture, tile));
}

/** @type {(picture: Picture) => boolean} */
export const isLayerInput = ({ view }) => view.includes("input");

// True if equal numbers mean equal channels in both pictures. Inputs and outputs of a layer have different channels.
/** @type {(one: Picture, other: Picture) => boolean} */
export function sameChannels(one, other) {
  return Boolean(one.tiles && other.tiles) && one.layer?.name === other.layer?.name && isLayerInput(one) === isLayerInput(other);
}

// A tile of a convolution's weights is a filter, which computes a channel.
/** @type {(picture: Picture) => string} */
export function channelWord(picture) {
  return picture.view === "kernels" ? "Filter" : "Channel";
}

/** @type {(picture: Picture, channel: number) => string} */
export function spokenNumbers(picture, channel) {
  const numbers = tileNumbers(picture, channel);
  const word = channelWord(picture).toLowerCase();
  if (!numbers) return `${word} ${channel}`;
  const { minimum, maximum, mean, zeros, nonfinite } = numbers;
  const rest = nonfinite > 0 ? `, not finite ${share(nonfinite)}` : "";
  return `${word} ${channel}: minimum ${number(minimum)}, maximum ${number(maximum)}, mean ${number(mean)}, zeros ${share(zeros)}${rest}`;
}
